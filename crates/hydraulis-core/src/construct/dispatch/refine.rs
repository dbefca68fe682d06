//! Moves and swaps that shorten the slowest replica.
//!
//! Where replicas have few sequences each, a swap seldom fits, because the next length is far. Then three replicas exchange
//! sequences: see [`exchanges`].

use std::cmp::Reverse;
use std::ops::Range;

use crate::cancellation::Cancellation;
use crate::construct::dispatch::Assignment;
use crate::construct::dispatch::exchanges::exchanges;
use crate::construct::dispatch::load::Ranking;
use crate::construct::dispatch::totals::Totals;
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
    let RefineBudget { tries, partners: usual, exchanging } = limits.budget;
    let has_few = tokens.len() <= exchanging * assignment.sequences.len();
    let mut budget = limits.packings;
    let mut rankings = rankings(assignment);
    'slowest: loop {
        cancellation()?;
        let slowest = rankings.iter().filter_map(Ranking::slowest);
        let slowest = slowest.max_by_key(|&replica| (assignment.times[replica], Reverse(replica)));
        let Some(slowest) = slowest else { return Ok(Stop::LocalOptimum) };
        for step in [Step::Pair(0..usual), Step::Pair(usual..usual + limits.more_partners), Step::Triple] {
            let changes = match step {
                Step::Pair(partners) => swaps(assignment, tokens, slowest, &rankings, partners),
                Step::Triple if has_few => exchanges(assignment, tokens, slowest),
                Step::Triple => Vec::new(),
            };
            for change in promising(changes, tries) {
                let Some(left) = budget.checked_sub(change.replicas().count()) else { return Ok(Stop::WorkBudget) };
                budget = left;
                let before: Vec<(usize, Millis)> =
                    change.replicas().map(|replica| (replica, assignment.times[replica])).collect();
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

/// Changes to be tried for the slowest replica.
enum Step {
    /// Moves to and swaps with the replicas of each class that end earliest, in this range of their order.
    Pair(Range<usize>),
    /// Exchanges among three replicas.
    Triple,
}

/// Sequences that change replicas, with the estimated end of the latest of these replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Change {
    pub(super) estimate: Millis,
    /// From the slowest replica.
    pub(super) leaves: Move,
    /// From a replica that a sequence enters, if it does not keep all its own.
    pub(super) others: [Option<Move>; 2],
}

/// A sequence that goes to another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Move {
    pub(super) to: usize,
    pub(super) id: usize,
    pub(super) from: usize,
}

impl Change {
    fn moves(&self) -> impl Iterator<Item = Move> {
        std::iter::once(self.leaves).chain(self.others.into_iter().flatten())
    }

    /// The replicas whose sequences change, the slowest first.
    fn replicas(&self) -> impl Iterator<Item = usize> {
        let entered = self.moves().map(|moved| moved.to).filter(|&replica| replica != self.leaves.from);
        std::iter::once(self.leaves.from).chain(entered)
    }
}

/// At most `most` of the changes, the most promising first.
fn promising(mut changes: Vec<Change>, most: usize) -> Vec<Change> {
    if most < changes.len() {
        changes.select_nth_unstable(most);
        changes.truncate(most);
    }
    changes.sort_unstable();
    changes
}

/// The moves and swaps that by estimate shorten the slowest replica; the partners of each class are its earliest replicas
/// to end.
fn swaps<'a>(
    assignment: &Assignment,
    tokens: &[Tokens],
    slowest: usize,
    rankings: &'a [Ranking],
    partners: Range<usize>,
) -> Vec<Change> {
    let from = Totals::of(assignment, tokens, slowest);
    let mut changes = Vec::new();
    let others = |ranking: &'a Ranking| {
        ranking.earliest().filter(|&replica| replica != slowest).skip(partners.start).take(partners.len())
    };
    for partner in rankings.iter().flat_map(others) {
        let to = Totals::of(assignment, tokens, partner);
        for &id in from.sequences {
            if to.packer.cost().admits(tokens[id]) {
                consider(&from, &to, Move { id, from: slowest, to: partner }, &mut changes);
            }
        }
    }
    changes
}

/// Estimates a move, and the swaps in which the partner returns a sequence of about half the difference in time.
fn consider(from: &Totals, to: &Totals, leaves: Move, changes: &mut Vec<Change>) {
    let wanted = to.packer.sequence_ms()[leaves.id] - (from.time - to.time) * 0.5;
    // Sequences stand longest first, so times fall along the list.
    let returning = to.sequences;
    let place = returning.partition_point(|&id| to.packer.sequence_ms()[id] > wanted);
    let near = place.saturating_sub(1)..(place + 2).min(returning.len());
    let swaps = returning[near].iter().copied().filter(|&id| from.packer.cost().admits(from.tokens[id]));
    for returns in std::iter::once(None).chain(swaps.map(Some)) {
        let estimate = from.exchanged(Some(leaves.id), returns).max(to.exchanged(returns, Some(leaves.id)));
        if estimate < from.time {
            let back = returns.map(|id| Move { id, from: leaves.to, to: leaves.from });
            changes.push(Change { estimate, leaves, others: [back, None] });
        }
    }
}

/// Packs the replicas of a change again and keeps it if the latest of them then ends before the slowest.
fn apply_if_shorter(assignment: &mut Assignment, tokens: &[Tokens], slowest: usize, change: &Change) -> bool {
    // Rounding alone must not count as an improvement, or two replicas could swap for ever.
    let enough = assignment.times[slowest].0 * (1.0 - 1e-9);
    let mut changed = Vec::new();
    for replica in change.replicas() {
        let mut sequences = assignment.sequences[replica].clone();
        sequences.retain(|&id| !change.moves().any(|moved| moved.id == id));
        for moved in change.moves().filter(|moved| moved.to == replica) {
            insert_by_length(&mut sequences, moved.id, tokens);
        }
        let ms = assignment.packer(replica).time(&sequences);
        if ms.0 >= enough {
            return false;
        }
        changed.push((replica, sequences, ms));
    }
    for (replica, sequences, ms) in changed {
        (assignment.sequences[replica], assignment.times[replica]) = (sequences, ms);
    }
    true
}

fn insert_by_length(ids: &mut Vec<usize>, id: usize, tokens: &[Tokens]) {
    let place = ids.partition_point(|&other| (tokens[other], Reverse(other)) > (tokens[id], Reverse(id)));
    ids.insert(place, id);
}
