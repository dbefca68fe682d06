//! The balance for one barrier per micro-batch: the micro-batches of a slot should be equal, and the slots as short
//! as possible.
//!
//! A slot takes as long as its longest micro-batch. A sequence that alone takes longer than the mean micro-batch
//! makes its slot that long, so the balance *gathers* the longest sequences: they fill that slot as far as its time
//! and the cap allow, which leaves less work for the other slots. The remaining sequences are assigned to all other
//! micro-batches at once: each sequence, longest first, goes to the micro-batch of least time that has room. Where
//! tokens almost fill the slots, this assignment finds no room for the last sequences. In that case the balance fills
//! one slot after another, which wastes almost no room.

use std::cmp::Reverse;

use crate::batching::balance::fullest::{Fullest, packed};
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::no_empty::{Group, fill_empty};
use crate::batching::balance::quickest::Quickest;
use crate::batching::balance::rebalance::rebalance;
use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens};

/// The slots of the balance, each with one micro-batch of every replica; `None` where no packing into a permitted
/// number of slots is found.
pub(super) fn slots(workload: &Workload) -> Option<Vec<Vec<MicroBatch>>> {
    let rules = &workload.rules;
    let number = rules.numbers.permitted(workload.least_slots().max(rules.least()))?;
    let mut slots = gathered(workload, number)
        .or_else(|| padded(filled_up(workload), workload))
        .or_else(|| padded(best_fit(workload), workload))?;
    if !rules.allow_empty && !fill_empty(&mut slots, Group::Slot, workload) {
        return None;
    }
    rebalance(&mut slots, workload);
    Some(slots)
}

/// The slots with empty ones up to a permitted number; `None` where they are too many.
fn padded(mut slots: Vec<Vec<MicroBatch>>, workload: &Workload) -> Option<Vec<Vec<MicroBatch>>> {
    let number = workload.rules.numbers.permitted(slots.len())?;
    slots.resize_with(number, || vec![MicroBatch::default(); workload.replicas]);
    Some(slots)
}

/// The slots of best-fit decreasing, which packs without regard to time.
fn best_fit(workload: &Workload) -> Vec<Vec<MicroBatch>> {
    let mut packs = packed(workload, &workload.longest_first);
    packs.resize_with(packs.len().next_multiple_of(workload.replicas), MicroBatch::default);
    packs.sort_by_key(|micro_batch| Reverse(micro_batch.ms));
    packs.chunks(workload.replicas).map(<[MicroBatch]>::to_vec).collect()
}

/// `count` slots with the long sequences gathered; `None` where a sequence finds no room.
fn gathered(workload: &Workload, count: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let mut slots = Vec::new();
    let mut rest = workload.longest_first.clone();
    while let Some(limit) = dominant(workload, &rest, count - slots.len()) {
        if workload.is_cancelled(rest.len()) {
            return None;
        }
        let (slot, left) = gather(workload, &rest, limit);
        slots.push(slot);
        rest = left;
    }
    let mut quickest = Quickest::new(workload, (count - slots.len()) * workload.replicas);
    if !rest.into_iter().all(|id| quickest.put(id)) {
        return None;
    }
    let mut others = quickest.finish();
    others.sort_by_key(|micro_batch| Reverse(micro_batch.ms));
    slots.extend(others.chunks(workload.replicas).map(<[MicroBatch]>::to_vec));
    Some(slots)
}

/// The time of the longest sequence, if it is longer than the mean micro-batch of the remaining slots.
fn dominant(workload: &Workload, rest: &[usize], slots: usize) -> Option<Millis> {
    let longest = workload.ms[*rest.first()?];
    (slots > 0 && longest > workload.mean_ms(rest, slots * workload.replicas)).then_some(longest)
}

/// One slot with the longest sequences that fit, in which no micro-batch takes longer than `limit`, and the remaining
/// sequences.
fn gather(workload: &Workload, ids: &[usize], limit: Millis) -> (Vec<MicroBatch>, Vec<usize>) {
    let mut fullest = Fullest::new(workload, limit, workload.replicas);
    let left = filled(workload, ids, |id| fullest.put(id).then_some(()).ok_or_else(|| fullest.most_room()));
    (fullest.finish(), left)
}

/// The slots that result when each slot is filled, by time, before the next one.
fn filled_up(workload: &Workload) -> Vec<Vec<MicroBatch>> {
    let mut slots = Vec::new();
    let mut rest = workload.longest_first.clone();
    while !rest.is_empty() && !workload.is_cancelled(rest.len()) {
        let mut quickest = Quickest::new(workload, workload.replicas);
        rest = filled(workload, &rest, |id| quickest.put(id).then_some(()).ok_or_else(|| quickest.most_room()));
        slots.push(quickest.finish());
    }
    slots
}

/// Passes these sequences, which come longest first, to `put`; returns those that it refuses. After a refusal, `put`
/// states the length of the longest sequence that it may still accept.
fn filled(workload: &Workload, mut ids: &[usize], mut put: impl FnMut(usize) -> Result<(), Tokens>) -> Vec<usize> {
    let mut left = Vec::new();
    while let Some((&id, others)) = ids.split_first() {
        let Err(most) = put(id) else {
            ids = others;
            continue;
        };
        let too_long = ids.partition_point(|&id| workload.tokens[id] > most).max(1);
        left.extend_from_slice(&ids[..too_long]);
        ids = &ids[too_long..];
    }
    left
}
