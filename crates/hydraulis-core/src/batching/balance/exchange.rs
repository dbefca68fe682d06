//! Exchanges of sequences between two micro-batches that bring the two totals closer.
//!
//! Each total includes the time of one of the micro-batches. The micro-batch of the longer total gives none, one or
//! two sequences for none, one or two sequences of the other micro-batch, such that the longer total becomes as short
//! as possible. Neither micro-batch becomes empty, unless the options permit it. An exchange of two sequences for one moves time between full micro-batches: it changes the sum of
//! squares and hardly the tokens.

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens};

/// The smallest gain that counts, as a share of the total. Sums taken in different orders may differ in their last
/// bits.
pub(super) const ROUNDING: f64 = 1e-7;

/// A micro-batch, the parts that may leave it, and the work of the total that includes its own and counts in the
/// comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    pub(super) micro_batch: &'a MicroBatch,
    pub(super) parts: &'a [Part],
    pub(super) total: Millis,
    /// The replica of the micro-batch.
    pub(super) replica: usize,
}

/// The part that the longer side gives and the part that it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    give: Part,
    take: Part,
    /// The longer of both totals after the exchange.
    pub(super) longest: Millis,
}

impl Exchange {
    /// Both micro-batches after the exchange.
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

/// The exchange after which the longer of both totals is shortest; `None` where no exchange shortens it.
pub(super) fn best_exchange(long: Side, short: Side, workload: &Workload) -> Option<Exchange> {
    let rules = &workload.rules;
    let counterparts = rules.budget.counterparts;
    let (long_pace, short_pace) = (rules.paces[long.replica], rules.paces[short.replica]);
    // The work that makes both totals equal where it changes sides.
    let equalizing = Millis((long.total.0 * long_pace - short.total.0 * short_pace) / (long_pace + short_pace));
    let keeps_number = rules.equal_sequences && long.replica != short.replica;
    let (given, taken) = (long.parts, short.parts);
    let (mut equal, mut chosen) = (0, None);
    let mut best = long.total * long_pace * (1.0 - ROUNDING);
    for give in given {
        while equal < taken.len() && taken[equal].ms + equalizing < give.ms {
            equal += 1;
        }
        for take in &taken[equal.saturating_sub(counterparts)..taken.len().min(equal + counterparts)] {
            let long_after = (long.total - give.ms + take.ms) * long_pace;
            let short_after = (short.total - take.ms + give.ms) * short_pace;
            let longest = long_after.max(short_after);
            let is_allowed = || {
                (!keeps_number || give.number == take.number)
                    && fits(long.micro_batch, give, take, workload)
                    && fits(short.micro_batch, take, give, workload)
            };
            if longest < best && is_allowed() {
                best = longest;
                chosen = Some(Exchange { give: *give, take: *take, longest });
            }
        }
    }
    chosen
}

/// Whether a micro-batch keeps the caps, and a sequence, without one part and with another.
fn fits(micro_batch: &MicroBatch, out: &Part, into: &Part, workload: &Workload) -> bool {
    let is_filled = micro_batch.sequences.len() + into.number > out.number;
    micro_batch.tokens + into.tokens <= workload.cap + out.tokens
        && micro_batch.extra_tokens + into.extra <= workload.extra_cap + out.extra
        && (is_filled || workload.rules.allow_empty)
}

/// None, one or two sequences of a micro-batch, by their places in the micro-batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    places: [Option<u8>; 2],
    number: usize,
    tokens: Tokens,
    extra: Tokens,
    ms: Millis,
}

/// Every part that the longest sequences of a micro-batch form, by time.
pub(super) fn parts(micro_batch: &MicroBatch, workload: &Workload) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    let longest = micro_batch.sequences.iter().take(workload.rules.budget.exchanged_sequences);
    parts.extend((0..).zip(longest).map(|(place, &id)| Part {
        places: [Some(place), None],
        number: 1,
        tokens: workload.tokens[id],
        extra: workload.extra[id],
        ms: workload.ms[id],
    }));
    for one in 1..parts.len() {
        for other in 1..one {
            let (one, other) = (parts[one], parts[other]);
            parts.push(Part {
                places: [other.places[0], one.places[0]],
                number: 2,
                tokens: one.tokens + other.tokens,
                extra: one.extra + other.extra,
                ms: one.ms + other.ms,
            });
        }
    }
    parts.sort_unstable_by_key(|part| (part.ms, part.places));
    parts
}

/// The micro-batch `own` without its part `out` and with the part `into` of `other`.
fn swapped(own: &MicroBatch, out: Part, other: &MicroBatch, into: Part, workload: &Workload) -> MicroBatch {
    let leaves = |place: usize| out.places.iter().flatten().any(|&out| usize::from(out) == place);
    let kept = own.sequences.iter().enumerate().filter(|&(place, _)| !leaves(place));
    let gained = into.places.iter().flatten().map(|&place| other.sequences[usize::from(place)]);
    let mut ids: Vec<usize> = kept.map(|(_, &id)| id).chain(gained).collect();
    ids.sort_unstable_by_key(|&id| workload.order(id));
    MicroBatch::of(ids, workload)
}
