//! Moves and swaps that shorten the slowest replica.

use std::cmp::Reverse;
use std::ops::Range;

use crate::cancellation::Cancellation;
use crate::construct::dispatch::Assignment;
use crate::construct::dispatch::load::Ranking;
use crate::construct::pack::Packer;
use crate::error::Result;
use crate::plan::Stop;
use crate::spec::RefineBudget;
use crate::units::{Millis, Tokens};

/// The limits of refinement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most replicas packed again: counted work, not time, so the same batch gives the same plan on any machine.
    pub packings: usize,
    /// Additional partners of each class for a slowest replica that would otherwise stay unchanged. They pay off if
    /// the budget allows a single strategy.
    pub more_partners: usize,
    /// The changes tried for one slowest replica.
    pub budget: RefineBudget,
}

/// Moves and swaps sequences away from the slowest replica while its packed time falls.
///
/// Each change of the slowest replica calls `cancellation`.
pub fn refine(
    assignment: &mut Assignment,
    tokens: &[Tokens],
    limits: Limits,
    cancellation: Cancellation,
) -> Result<Stop> {
    let RefineBudget { tries, partners: usual } = limits.budget;
    let mut budget = limits.packings;
    let mut rankings = rankings(assignment);
    'slowest: loop {
        cancellation()?;
        let slowest = rankings.iter().filter_map(Ranking::slowest);
        let slowest = slowest.max_by_key(|&replica| (assignment.times[replica], Reverse(replica)));
        let Some(slowest) = slowest else { return Ok(Stop::LocalOptimum) };
        for partners in [0..usual, usual..usual + limits.more_partners] {
            for change in promising(assignment, tokens, slowest, &rankings, partners, tries) {
                if budget < 2 {
                    return Ok(Stop::WorkBudget);
                }
                budget -= 2;
                let before = [slowest, change.partner].map(|replica| (replica, assignment.times[replica]));
                if apply_if_shorter(assignment, tokens, slowest, &change) {
                    for (replica, time) in before {
                        rankings[assignment.class_of[replica]].change(replica, time, assignment.times[replica]);
                    }
                    continue 'slowest;
                }
            }
        }
        return Ok(Stop::LocalOptimum);
    }
}

/// The replicas of each class, by time.
fn rankings(assignment: &Assignment) -> Vec<Ranking> {
    let times = |class: usize| {
        let replicas = assignment.times.iter().copied().enumerate();
        replicas.filter(move |(replica, _)| assignment.class_of[*replica] == class)
    };
    (0..assignment.packers.len()).map(|class| Ranking::new(times(class))).collect()
}

/// A change: one sequence leaves the slowest replica, and one of the partner's may come back.
#[derive(Clone, Copy, Debug)]
struct Change {
    partner: usize,
    leaves: usize,
    returns: Option<usize>,
    estimate: Millis,
}

/// At most `most` changes that by estimate shorten the slowest replica, the most promising first; the partners of each
/// class are its earliest replicas to end.
fn promising<'a>(
    assignment: &Assignment,
    tokens: &[Tokens],
    slowest: usize,
    rankings: &'a [Ranking],
    partners: Range<usize>,
    most: usize,
) -> Vec<Change> {
    let from = Totals::of(assignment, tokens, slowest);
    let mut changes = Vec::new();
    let others = |ranking: &'a Ranking| {
        ranking.earliest().filter(|&replica| replica != slowest).skip(partners.start).take(partners.len())
    };
    for partner in rankings.iter().flat_map(others) {
        let to = Totals::of(assignment, tokens, partner);
        for &leaves in &assignment.sequences[slowest] {
            if to.packer.cost().admits(tokens[leaves]) {
                consider(
                    &from,
                    &to,
                    leaves,
                    Change { partner, leaves, returns: None, estimate: Millis::ZERO },
                    &mut changes,
                );
            }
        }
    }
    let order = |change: &Change| (change.estimate, change.partner, change.leaves, change.returns);
    if most < changes.len() {
        changes.select_nth_unstable_by_key(most, order);
        changes.truncate(most);
    }
    changes.sort_unstable_by_key(order);
    changes
}

/// Estimates a move, and the swaps in which the partner returns a sequence of about half the difference in time.
fn consider(from: &Totals, to: &Totals, leaves: usize, change: Change, changes: &mut Vec<Change>) {
    let wanted = to.packer.sequence_ms()[leaves] - (from.time - to.time) * 0.5;
    // Sequences stand longest first, so times fall along the list.
    let returning = to.sequences;
    let place = returning.partition_point(|&id| to.packer.sequence_ms()[id] > wanted);
    let near = place.saturating_sub(1)..(place + 2).min(returning.len());
    let swaps = returning[near].iter().copied().filter(|&id| from.packer.cost().admits(from.tokens[id]));
    for returns in std::iter::once(None).chain(swaps.map(Some)) {
        let estimate = from.exchanged(Some(leaves), returns).max(to.exchanged(returns, Some(leaves)));
        if estimate < from.time {
            changes.push(Change { returns, estimate, ..change });
        }
    }
}

/// A replica's sums, for estimates of a change of one sequence.
struct Totals<'a> {
    packer: &'a Packer<'a>,
    sequences: &'a [usize],
    tokens: &'a [Tokens],
    time: Millis,
    load: Millis,
    assigned: Tokens,
    /// Excess of the packed time over the estimate.
    excess: Millis,
}

impl<'a> Totals<'a> {
    fn of(assignment: &'a Assignment, tokens: &'a [Tokens], replica: usize) -> Totals<'a> {
        let (packer, sequences) = (assignment.packer_of(replica), assignment.sequences[replica].as_slice());
        let (time, assigned) = (assignment.times[replica], sequences.iter().map(|&id| tokens[id]).sum());
        let load = sequences.iter().map(|&id| packer.sequence_ms()[id]).sum();
        let totals = Totals { packer, sequences, tokens, time, load, assigned, excess: Millis::ZERO };
        // Without a pipeline the estimate is off only by a micro-batch that the packer could not avoid, and a change
        // may well avoid it.
        let excess = if packer.cost().scheme().pp() > 1 { time - totals.exchanged(None, None) } else { Millis::ZERO };
        Totals { excess, ..totals }
    }

    /// Estimated time of the replica without one sequence and with another.
    fn exchanged(&self, leaves: Option<usize>, enters: Option<usize>) -> Millis {
        let ms = |id: Option<usize>| id.map(|id| self.packer.sequence_ms()[id]).unwrap_or_default();
        let assigned = |id: Option<usize>| id.map(|id| self.tokens[id]).unwrap_or_default();
        let longest = self.sequences.iter().copied().find(|&id| Some(id) != leaves);
        let longest = ms(longest).max(ms(enters));
        let load = self.load - ms(leaves) + ms(enters);
        self.packer.estimate(load, self.assigned + assigned(enters) - assigned(leaves), longest) + self.excess
    }
}

/// Packs both replicas again and keeps the change if the later of the two ends earlier.
fn apply_if_shorter(assignment: &mut Assignment, tokens: &[Tokens], slowest: usize, change: &Change) -> bool {
    let mut shrunk = assignment.sequences[slowest].clone();
    let mut grown = assignment.sequences[change.partner].clone();
    shrunk.retain(|&id| id != change.leaves);
    grown.retain(|&id| Some(id) != change.returns);
    insert_by_length(&mut grown, change.leaves, tokens);
    if let Some(id) = change.returns {
        insert_by_length(&mut shrunk, id, tokens);
    }
    // Rounding alone must not count as an improvement, or two replicas could swap for ever.
    let enough = assignment.times[slowest].0 * (1.0 - 1e-9);
    let shrunk_ms = assignment.packer(slowest).time(&shrunk);
    if shrunk_ms.0 >= enough {
        return false;
    }
    let grown_ms = assignment.packer(change.partner).time(&grown);
    let shorter = grown_ms.0 < enough;
    if shorter {
        assignment.sequences[slowest] = shrunk;
        assignment.sequences[change.partner] = grown;
        assignment.times[slowest] = shrunk_ms;
        assignment.times[change.partner] = grown_ms;
    }
    shorter
}

fn insert_by_length(ids: &mut Vec<usize>, id: usize, tokens: &[Tokens]) {
    let place = ids.partition_point(|&other| (tokens[other], Reverse(other)) > (tokens[id], Reverse(id)));
    ids.insert(place, id);
}
