//! The constrained balance for one barrier per micro-batch.

use std::cmp::Reverse;

use crate::batching::balance::constrained::bins::filled;
use crate::batching::balance::constrained::equal_numbers::with_equal_numbers;
use crate::batching::balance::constrained::rounds::{Rule, replicas};
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
    if rules.equal_sequences
        && rules.is_even()
        && let Some(slots) = free_of_numbers(workload).and_then(|slots| with_equal_numbers(slots, workload))
    {
        return finished(slots, workload);
    }
    let mut candidates = vec![by_time(workload, number)];
    if candidates[0].is_none() {
        // The caps leave little room. Either fuller micro-batches or more of them are then the shorter step.
        candidates.extend([by_size(workload, number), with_more(workload, number)]);
    }
    candidates.extend(unhindered(workload).filter(|&more| more > number).map(|more| by_time(workload, more)));
    candidates.into_iter().flatten().min_by_key(|slots| time(slots, workload))
}

/// The slots of the balance without equal numbers of sequences.
fn free_of_numbers(workload: &Workload) -> Option<Vec<Vec<MicroBatch>>> {
    let mut free = workload.clone();
    free.rules.equal_sequences = false;
    slots(&free)
}

/// For replicas of unequal speed, the number of micro-batches in which the fastest replica has room for its share of
/// the tokens. With fewer, full micro-batches leave work to the slower replicas.
fn unhindered(workload: &Workload) -> Option<usize> {
    let rules = &workload.rules;
    if rules.is_even() {
        return None;
    }
    let fastest = rules.paces.iter().copied().fold(f64::INFINITY, f64::min);
    let needed = |tokens: &[Tokens], cap: Tokens| {
        let share = tokens.iter().copied().sum::<Tokens>().as_f64() / (fastest * rules.speed());
        (1..=tokens.len()).find(|&number| count(number) * cap.as_f64() >= share)
    };
    let by_extra = rules.extra_cap.and_then(|cap| needed(&workload.extra, cap)).unwrap_or_default();
    rules.numbers.permitted(needed(&workload.tokens, workload.cap)?.max(by_extra) + 1)
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
    if workload.rules.equal_sequences {
        return in_rounds(workload, &workload.longest_first, number);
    }
    // Equal replicas have one choice: the slot of the longest sequence has every other long one.
    let parts = if workload.rules.is_even() { &[1][..] } else { &[1, 2, 4] };
    let gathered = parts.iter().filter_map(|&part| gathered(workload, number, part));
    let best = gathered.min_by_key(|slots| time(slots, workload));
    finished(best.or_else(|| arranged(workload, &workload.longest_first, number))?, workload)
}

/// The slots in which the largest sequence chooses first.
fn by_size(workload: &Workload, number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let ids = largest_first(workload, &workload.longest_first);
    if workload.rules.equal_sequences {
        return in_rounds(workload, &ids, number);
    }
    finished(arranged(workload, &ids, number).or_else(|| best_fit(workload, number))?, workload)
}

/// The slots with equal numbers of sequences, by the rule of the shorter step.
fn in_rounds(workload: &Workload, ids: &[usize], number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let by = |&rule: &Rule| finished(in_slots(replicas(workload, ids, number, rule)?, workload), workload);
    // For equal replicas both rules are the same.
    let rules = if workload.rules.is_even() { &Rule::ALL[..1] } else { &Rule::ALL };
    rules.iter().filter_map(by).min_by_key(|slots| time(slots, workload))
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
fn gathered(workload: &Workload, number: usize, part: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let mut slots = Vec::new();
    let mut rest = workload.longest_first.clone();
    while let Some(limit) = dominant(workload, &rest, number - slots.len(), part) {
        if workload.is_cancelled(rest.len()) {
            return None;
        }
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

/// The time of a slot with dominant sequences, which alone take longer than the mean of the remaining slots on the
/// fastest replica: of the longest one among equal replicas. Otherwise a `part` of them shares the slot, where each
/// goes to the replica that ends first. A limit by the longest alone would leave every other long one to a slot of its
/// own, because one replica is the fastest. `None` without dominant sequences.
fn dominant(workload: &Workload, rest: &[usize], slots: usize, part: usize) -> Option<Millis> {
    let rules = &workload.rules;
    let longest_ms = workload.ms[*rest.first()?];
    let fastest = (0..workload.replicas).min_by(|&one, &other| rules.paces[one].total_cmp(&rules.paces[other]))?;
    let alone = |ms: Millis| workload.time(ms, 1, fastest);
    let work = workload.total_ms(rest) + rules.fixed * count(slots * workload.replicas);
    let mean = Millis(work.0 / (rules.speed() * count(slots)));
    let longest = alone(longest_ms);
    if slots == 0 || longest <= mean {
        return None;
    }
    if rules.is_even() {
        return Some(longest);
    }
    let dominant = rest.iter().take(workload.replicas).take_while(|&&id| alone(workload.ms[id]) > mean).count();
    let together = filled(workload, &rest[..dominant.div_ceil(part)], 1);
    let ends = |replicas: Vec<Vec<MicroBatch>>| {
        replicas.iter().enumerate().map(|(at, own)| workload.time(own[0].ms, 1, at)).max().unwrap_or(longest)
    };
    Some(together.map_or(longest, ends).max(longest))
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
        if workload.is_cancelled(open.len()) {
            break;
        }
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
    Some(in_slots(filled(workload, ids, number)?, workload))
}

/// `number` slots with the micro-batches of best-fit decreasing; `None` where these are too many.
fn best_fit(workload: &Workload, number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let packs = packed(workload, &workload.longest_first);
    if packs.len() > number * workload.replicas {
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
