//! Moves and swaps that shorten the slowest replica.

use serde::{Deserialize, Serialize};

use crate::dispatch::Assignment;
use crate::units::{Millis, Tokens};

/// Changes tried by packing, for each change of the slowest replica.
const TRIES: usize = 12;
/// Other replicas considered for it, the earliest to end first.
const PARTNERS: usize = 8;

/// Why refinement stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// No move or swap that was tried shortens the slowest replica.
    LocalOptimum,
    /// The budget of packings was used up.
    WorkBudget,
}

/// Moves and swaps sequences away from the slowest replica while its packed time falls.
///
/// `budget` counts replicas packed anew, not time: the same batch gives the same plan on any machine.
pub fn refine(assignment: &mut Assignment, tokens: &[Tokens], mut budget: usize) -> Stop {
    loop {
        let slowest =
            (0..assignment.times.len()).max_by_key(|&replica| (assignment.times[replica], std::cmp::Reverse(replica)));
        let Some(slowest) = slowest else { return Stop::LocalOptimum };
        let changes = promising(assignment, tokens, slowest);
        let mut improved = false;
        for change in changes.into_iter().take(TRIES) {
            if budget < 2 {
                return Stop::WorkBudget;
            }
            budget -= 2;
            if apply_if_shorter(assignment, tokens, slowest, &change) {
                improved = true;
                break;
            }
        }
        if !improved {
            return Stop::LocalOptimum;
        }
    }
}

/// One sequence leaves the slowest replica, and one of the partner's may come back.
#[derive(Clone, Copy, Debug)]
struct Change {
    partner: usize,
    leaves: usize,
    returns: Option<usize>,
    estimate: Millis,
}

/// The changes that by marginal cost would shorten the slowest replica, the most promising first.
fn promising(assignment: &Assignment, tokens: &[Tokens], slowest: usize) -> Vec<Change> {
    let mut partners: Vec<usize> = (0..assignment.times.len()).filter(|&replica| replica != slowest).collect();
    partners.sort_by_key(|&replica| (assignment.times[replica], replica));
    let mut changes = Vec::new();
    for partner in partners.into_iter().take(PARTNERS) {
        for &leaves in &assignment.sequences[slowest] {
            if assignment.packer_of(partner).cost().admits(tokens[leaves]) {
                consider(
                    assignment,
                    tokens,
                    slowest,
                    Change { partner, leaves, returns: None, estimate: Millis::ZERO },
                    &mut changes,
                );
            }
        }
    }
    changes.sort_by_key(|change| (change.estimate, change.partner, change.leaves, change.returns));
    changes
}

/// Estimates a move, and the swaps for which the partner gives back about half the difference in time.
fn consider(assignment: &Assignment, tokens: &[Tokens], slowest: usize, change: Change, changes: &mut Vec<Change>) {
    let Change { partner, leaves, .. } = change;
    let (from, to) = (Marginal::of(assignment, tokens, slowest), Marginal::of(assignment, tokens, partner));
    let (now, there) = (assignment.times[slowest], assignment.times[partner]);
    let half = (now - there) * 0.5;
    let wanted = to.cost(leaves) - half;
    // Sequences stand longest first, so costs fall along the list.
    let returning = &assignment.sequences[partner];
    let place = returning.partition_point(|&id| to.cost(id) > wanted);
    let near = place.saturating_sub(1)..(place + 2).min(returning.len());
    let swaps = returning[near].iter().copied().filter(|&id| assignment.packer_of(slowest).cost().admits(tokens[id]));
    for returns in std::iter::once(None).chain(swaps.map(Some)) {
        let back = |marginal: &Marginal| returns.map(|id| marginal.cost(id)).unwrap_or_default();
        let estimate = (now - from.cost(leaves) + back(&from)).max(there + to.cost(leaves) - back(&to));
        if estimate < now {
            changes.push(Change { partner, leaves, returns, estimate });
        }
    }
}

/// What a sequence adds to a replica: its own time, and its share of the fixed cost of a full micro-batch.
struct Marginal<'a> {
    ms: &'a [Millis],
    tokens: &'a [Tokens],
    fixed_per_token: Millis,
}

impl<'a> Marginal<'a> {
    fn of(assignment: &'a Assignment, tokens: &'a [Tokens], replica: usize) -> Marginal<'a> {
        let packer = assignment.packer_of(replica);
        let cost = packer.cost();
        Marginal { ms: packer.sequence_ms(), tokens, fixed_per_token: cost.fixed_ms() * (1.0 / cost.cap().as_f64()) }
    }

    fn cost(&self, id: usize) -> Millis {
        self.ms[id] + self.fixed_per_token * self.tokens[id].as_f64()
    }
}

/// Packs both replicas anew and keeps the change if the later of the two ends earlier.
fn apply_if_shorter(assignment: &mut Assignment, tokens: &[Tokens], slowest: usize, change: &Change) -> bool {
    let mut shrunk = assignment.sequences[slowest].clone();
    let mut grown = assignment.sequences[change.partner].clone();
    shrunk.retain(|&id| id != change.leaves);
    grown.retain(|&id| Some(id) != change.returns);
    insert_by_length(&mut grown, change.leaves, tokens);
    if let Some(id) = change.returns {
        insert_by_length(&mut shrunk, id, tokens);
    }
    let shrunk_ms = assignment.packer(slowest).time(&shrunk);
    let grown_ms = assignment.packer(change.partner).time(&grown);
    // Rounding alone must not count as an improvement, or two replicas could trade for ever.
    let shorter = shrunk_ms.max(grown_ms).0 < assignment.times[slowest].0 * (1.0 - 1e-9);
    if shorter {
        assignment.sequences[slowest] = shrunk;
        assignment.sequences[change.partner] = grown;
        assignment.times[slowest] = shrunk_ms;
        assignment.times[change.partner] = grown_ms;
    }
    shorter
}

fn insert_by_length(ids: &mut Vec<usize>, id: usize, tokens: &[Tokens]) {
    let place =
        ids.partition_point(|&other| (tokens[other], std::cmp::Reverse(other)) > (tokens[id], std::cmp::Reverse(id)));
    ids.insert(place, id);
}
