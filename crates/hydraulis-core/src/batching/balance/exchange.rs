//! What two micro-batches exchange so that the totals they are a part of come closer.
//!
//! The one of the longer total gives none, one or two sequences for none, one or two of the other's, such that the
//! longer total becomes as short as can be. Two for one is what moves time between full micro-batches: it changes
//! the sum of squares and hardly the tokens.

use std::cmp::Reverse;

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens};

/// Of a micro-batch, this many of the longest sequences are considered; short ones move little time.
const SEQUENCES: usize = 8;
/// Counterparts tried around the one that would make both times equal: the nearest may not fit.
const NEAREST: usize = 3;
/// A sum taken in another order may differ in its last bits: so small a share is no gain.
pub(super) const ROUNDING: f64 = 1e-7;

/// A micro-batch, what of it may leave, and the total that counts and that it is a part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    pub(super) micro_batch: &'a MicroBatch,
    pub(super) parts: &'a [Part],
    pub(super) total: Millis,
}

/// What the longer of two gives and takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    give: Part,
    take: Part,
    /// The longer of both totals after it.
    pub(super) longest: Millis,
}

impl Exchange {
    /// Both micro-batches after it.
    pub(super) fn carried_out(
        &self,
        long: &MicroBatch,
        short: &MicroBatch,
        workload: &Workload,
    ) -> (MicroBatch, MicroBatch) {
        let Exchange { give, take, .. } = *self;
        (swapped(long, give, short, take, workload), swapped(short, take, long, give, workload))
    }
}

/// The exchange after which the longer of both totals is shortest; None where it only becomes longer.
pub(super) fn best_exchange(long: Side, short: Side, workload: &Workload) -> Option<Exchange> {
    let half = Millis(0.5 * (long.total - short.total).0);
    let (given, taken) = (long.parts, short.parts);
    let (mut equal, mut chosen) = (0, None);
    let mut best = long.total * (1.0 - ROUNDING);
    for give in given {
        while equal < taken.len() && taken[equal].ms + half < give.ms {
            equal += 1;
        }
        for take in &taken[equal.saturating_sub(NEAREST)..taken.len().min(equal + NEAREST)] {
            let longest = (long.total - give.ms + take.ms).max(short.total - take.ms + give.ms);
            let fits = long.micro_batch.tokens + take.tokens <= workload.cap + give.tokens
                && short.micro_batch.tokens + give.tokens <= workload.cap + take.tokens;
            if longest < best && fits {
                best = longest;
                chosen = Some(Exchange { give: *give, take: *take, longest });
            }
        }
    }
    chosen
}

/// None, one or two sequences of a micro-batch, by their places in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    places: [Option<u8>; 2],
    tokens: Tokens,
    ms: Millis,
}

/// Every part of the longest sequences, by time.
pub(super) fn parts(micro_batch: &MicroBatch, workload: &Workload) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    let longest = micro_batch.sequences.iter().take(SEQUENCES);
    parts.extend((0..).zip(longest).map(|(place, &id)| Part {
        places: [Some(place), None],
        tokens: workload.tokens[id],
        ms: workload.ms[id],
    }));
    for one in 1..parts.len() {
        for other in 1..one {
            let (one, other) = (parts[one], parts[other]);
            parts.push(Part {
                places: [other.places[0], one.places[0]],
                tokens: one.tokens + other.tokens,
                ms: one.ms + other.ms,
            });
        }
    }
    parts.sort_unstable_by_key(|part| (part.ms, part.places));
    parts
}

/// A micro-batch without a part of its own, with one of another.
fn swapped(own: &MicroBatch, out: Part, other: &MicroBatch, into: Part, workload: &Workload) -> MicroBatch {
    let leaves = |place: usize| out.places.iter().flatten().any(|&out| usize::from(out) == place);
    let kept = own.sequences.iter().enumerate().filter(|&(place, _)| !leaves(place));
    let gained = into.places.iter().flatten().map(|&place| other.sequences[usize::from(place)]);
    let mut ids: Vec<usize> = kept.map(|(_, &id)| id).chain(gained).collect();
    ids.sort_unstable_by_key(|&id| (Reverse(workload.tokens[id]), id));
    MicroBatch::of(ids, workload)
}
