//! Lower bounds on the time of every balance.
//!
//! Each bound holds for any number of micro-batches. Let `R` be the number of replicas and `W` the work of all
//! sequences.
//! - With one barrier per step, the bounds are the mean `W / R` and the longest sequence.
//! - With one barrier per micro-batch, let `m_k` be the time of the longest sequence such that the sequences at least
//!   as long do not fit into `k - 1` slots; at least `k` slots then hold one of them. Let `G_k` be the most work that
//!   fits into `k` slots. The `k` longest slots take at least `M = m_1 + .. + m_k`, and do at most `min(R M, G_k)` of
//!   the work in that time. Any further time of these slots, like the time of any other slot, does at most `R` times
//!   its own length of work. So for each `k` the sum of all slots is at least `M + (W - min(R M, G_k)) / R`.
//!
//! `G_k` is a fractional knapsack of `k R` caps, in which at most `j` sequences above `cap / (j + 1)` share a
//! micro-batch. Time per token rises with length, so an optimal choice takes the longest sequences that these counts
//! admit.

use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens, count};

/// Allowance for rounding. The balance sums the same terms in another order; without this factor the time of a
/// perfect balance could fall below its bound.
const ROUNDING: f64 = 1.0 - 1e-9;

/// The bound with one barrier per step.
pub(super) fn by_step(workload: &Workload) -> Millis {
    let longest = workload.longest_first.first().map(|&id| workload.ms[id]).unwrap_or_default();
    workload.mean_ms(&workload.longest_first, workload.replicas).max(longest) * ROUNDING
}

/// The bound with one barrier per micro-batch.
pub(super) fn by_slot(workload: &Workload) -> Millis {
    let replicas = count(workload.replicas);
    let work = workload.total_ms(&workload.longest_first).0;
    let mut bound = work / replicas;
    let mut longest = 0.0;
    for slots in 1..=workload.rules.budget.bound_slots {
        let Some(next) = longest_of(workload, slots) else { break };
        longest += next.0;
        let done = most_work(workload, slots).0.min(replicas * longest);
        bound = bound.max(longest + (work - done) / replicas);
    }
    Millis(bound * ROUNDING)
}

/// The time of the longest sequence such that the sequences at least as long do not fit into `slots - 1` slots.
fn longest_of(workload: &Workload, slots: usize) -> Option<Millis> {
    let mut ranked = workload.longest_first.iter().enumerate();
    let (_, &id) = ranked.find(|&(before, &id)| before >= places(workload, id, slots - 1))?;
    Some(workload.ms[id])
}

/// The number of sequences of this sequence's length that fit into the slots.
fn places(workload: &Workload, id: usize, slots: usize) -> usize {
    workload.together(id).saturating_mul(slots * workload.replicas)
}

/// The most work that fits into the slots.
fn most_work(workload: &Workload, slots: usize) -> Millis {
    let mut room = Tokens(workload.cap.0.saturating_mul(u64::try_from(slots * workload.replicas).unwrap_or(u64::MAX)));
    let (mut taken, mut work) = (0, Millis::ZERO);
    for &id in &workload.longest_first {
        if taken >= places(workload, id, slots) {
            continue;
        }
        let tokens = workload.tokens[id];
        if tokens > room {
            return work + workload.ms[id] * (room.as_f64() / tokens.as_f64());
        }
        room = room - tokens;
        work += workload.ms[id];
        taken += 1;
    }
    work
}
