//! The constrained balance for one barrier per micro-batch.

use std::cmp::Reverse;

use crate::batching::balance::constrained::bins::filled;
use crate::batching::balance::constrained::rounds::in_rounds;
use crate::batching::balance::constrained::{assigned, largest_first, packed, sort};
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::no_empty::{Group, fill_empty};
use crate::batching::balance::rebalance::rebalance;
use crate::batching::balance::workload::Workload;
use crate::units::{Millis, Tokens, count};

/// The slots of the balance; `None` where no packing into a permitted number of micro-batches is found.
pub(in crate::batching::balance) fn slots(workload: &Workload) -> Option<Vec<Vec<MicroBatch>>> {
    let rules = &workload.rules;
    let number = rules.numbers.permitted(workload.least_slots().max(rules.least()))?;
    if let Some(slots) = by_time(workload, number) {
        return Some(slots);
    }
    // The caps leave little room. Either fuller micro-batches or more of them are then the shorter step.
    let by_size = arranged(workload, &largest_first(workload, &workload.longest_first), number);
    let full = by_size.or_else(|| best_fit(workload, number)).and_then(|slots| finished(slots, workload));
    let candidates = [full, with_more(workload, number)];
    candidates.into_iter().flatten().min_by_key(|slots| time(slots, workload))
}

/// The slots with more than `number` micro-batches of each replica, for which the assignment by time finds room.
fn with_more(workload: &Workload, mut number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let (numbers, sequences) = (workload.rules.numbers, workload.tokens.len());
    let mut further = 1;
    while number < sequences {
        // The steps grow, so that a batch without a packing ends soon.
        number = numbers.permitted(number + further)?;
        further *= 2;
        if let Some(slots) = by_time(workload, number) {
            return Some(slots);
        }
    }
    None
}

fn by_time(workload: &Workload, number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    if !workload.rules.allow_empty && number * workload.replicas > workload.tokens.len() {
        return None;
    }
    let slots = gathered(workload, number).or_else(|| arranged(workload, &workload.longest_first, number))?;
    finished(slots, workload)
}

fn finished(mut slots: Vec<Vec<MicroBatch>>, workload: &Workload) -> Option<Vec<Vec<MicroBatch>>> {
    let is_complete = workload.rules.allow_empty || fill_empty(&mut slots, Group::Slot, workload);
    for pack in slots.iter_mut().flatten() {
        sort(pack, workload);
    }
    rebalance(&mut slots, workload);
    is_complete.then_some(slots)
}

/// The sum of the slots' longest micro-batches.
fn time(slots: &[Vec<MicroBatch>], workload: &Workload) -> Millis {
    let longest = |slot: &Vec<MicroBatch>| {
        slot.iter().enumerate().map(|(at, pack)| workload.time(pack.ms, 1, at)).max().unwrap_or_default()
    };
    slots.iter().map(longest).sum()
}

/// `number` slots, of which the first ones have the long sequences; `None` where there are none of these, or where a
/// sequence finds no room.
fn gathered(workload: &Workload, number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let mut slots = Vec::new();
    let mut rest = workload.longest_first.clone();
    if workload.rules.equal_sequences {
        return None;
    }
    while let Some(limit) = dominant(workload, &rest, number - slots.len()) {
        let (slot, left) = gather(workload, &rest, limit);
        slots.push(slot);
        rest = left;
    }
    if slots.is_empty() {
        return None;
    }
    let others = arranged(workload, &rest, number - slots.len())?;
    slots.extend(others);
    Some(slots)
}

/// The time of a slot with the longest sequence, if it is longer than the mean of the remaining slots.
fn dominant(workload: &Workload, rest: &[usize], slots: usize) -> Option<Millis> {
    let rules = &workload.rules;
    let longest_ms = workload.ms[*rest.first()?];
    let longest = (0..workload.replicas).map(|replica| workload.time(longest_ms, 1, replica)).min()?;
    let work = workload.total_ms(rest) + rules.fixed * count(slots * workload.replicas);
    (slots > 0 && longest.0 > work.0 / (rules.speed() * count(slots))).then_some(longest)
}

/// One slot with the longest sequences that fit, in which no micro-batch takes longer than `limit`, and the remaining
/// sequences.
fn gather(workload: &Workload, ids: &[usize], limit: Millis) -> (Vec<MicroBatch>, Vec<usize>) {
    let mut slot = vec![MicroBatch::default(); workload.replicas];
    let mut open: Vec<usize> = (0..workload.replicas).collect();
    let least = ids.iter().map(|&id| (workload.tokens[id], workload.ms[id]));
    let (least_tokens, least_ms) =
        least.fold((Tokens(u64::MAX), Millis::INFINITY), |(tokens, ms), one| (tokens.min(one.0), ms.min(one.1)));
    let mut left = Vec::new();
    for &id in ids {
        let in_time = |at: usize, ms: Millis| workload.time(slot[at].ms + ms, 1, at) <= limit * (1.0 + f64::EPSILON);
        let fitting = open.iter().filter(|&&at| in_time(at, workload.ms[id]) && slot[at].fits(id, workload));
        let Some(&at) = fitting.max_by_key(|&&at| (slot[at].tokens, Reverse(at))) else {
            left.push(id);
            continue;
        };
        slot[at].take(id, workload);
        let is_closed = slot[at].tokens + least_tokens > workload.cap
            || workload.time(slot[at].ms + least_ms, 1, at) > limit * (1.0 + f64::EPSILON);
        if is_closed {
            open.retain(|&one| one != at);
        }
    }
    (slot, left)
}

/// `number` slots with these sequences, in whose order they choose their micro-batches.
fn arranged(workload: &Workload, ids: &[usize], number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let is_equal = workload.rules.equal_sequences;
    let replicas = if is_equal { in_rounds(workload, ids, number)? } else { filled(workload, ids, number)? };
    Some(in_slots(replicas, workload))
}

/// `number` slots with the micro-batches of best-fit decreasing; `None` where these are too many.
fn best_fit(workload: &Workload, number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let packs = packed(workload, &workload.longest_first);
    if workload.rules.equal_sequences || packs.len() > number * workload.replicas {
        return None;
    }
    let mut replicas = assigned(packs, number, workload);
    for own in &mut replicas {
        own.resize_with(number, MicroBatch::default);
    }
    Some(in_slots(replicas, workload))
}

/// The slots with the least sum of times: the i-th longest micro-batches of all replicas share a slot. Equal replicas
/// may also exchange their micro-batches.
fn in_slots(mut replicas: Vec<Vec<MicroBatch>>, workload: &Workload) -> Vec<Vec<MicroBatch>> {
    if workload.rules.is_even() && !workload.rules.equal_sequences {
        let mut all: Vec<MicroBatch> = replicas.into_iter().flatten().collect();
        all.sort_by_key(|pack| Reverse(pack.ms));
        return all.chunks(workload.replicas).map(<[MicroBatch]>::to_vec).collect();
    }
    for own in &mut replicas {
        own.sort_by_key(|pack| Reverse(pack.ms));
    }
    let number = replicas.first().map(Vec::len).unwrap_or_default();
    (0..number).map(|slot| replicas.iter_mut().map(|own| std::mem::take(&mut own[slot])).collect()).collect()
}
