//! Equal numbers of sequences for equal replicas, from a balance without this demand.
//!
//! The micro-batches of a slot may change their replicas at no cost. Slot by slot, those with the greatest spread of
//! numbers first, the micro-batch with most sequences goes to the replica with the fewest so far. The replicas then
//! differ by few sequences. As long as two of them differ by more than one, the one with most gives the other a short
//! sequence inside a slot, where that lengthens the slot least.

use std::cmp::Reverse;

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// The slots with numbers of sequences that differ by at most one between replicas; `None` where caps or the last
/// sequences of micro-batches do not permit a move.
pub(super) fn with_equal_numbers(mut slots: Vec<Vec<MicroBatch>>, workload: &Workload) -> Option<Vec<Vec<MicroBatch>>> {
    let mut numbers = exchanged(&mut slots, workload.replicas);
    loop {
        let fewest = (0..numbers.len()).min_by_key(|&at| numbers[at])?;
        let most = (0..numbers.len()).max_by_key(|&at| (numbers[at], Reverse(at)))?;
        if numbers[most] <= numbers[fewest] + 1 {
            return Some(slots);
        }
        if workload.is_cancelled(slots.len() * workload.replicas) {
            return None;
        }
        let (slot, place) = cheapest_move(&slots, most, fewest, workload)?;
        let id = slots[slot][most].sequences[place];
        let rest = slots[slot][most].sequences.iter().copied().filter(|&other| other != id).collect();
        slots[slot][most] = MicroBatch::of(rest, workload);
        slots[slot][fewest].take(id, workload);
        numbers[most] -= 1;
        numbers[fewest] += 1;
    }
}

/// Exchanges the micro-batches inside of slots; returns the number of sequences of each replica.
fn exchanged(slots: &mut [Vec<MicroBatch>], replicas: usize) -> Vec<usize> {
    let mut numbers = vec![0; replicas];
    let spread = |slot: &Vec<MicroBatch>| {
        let sizes = || slot.iter().map(|pack| pack.sequences.len());
        sizes().max().unwrap_or_default() - sizes().min().unwrap_or_default()
    };
    let mut widest_first: Vec<usize> = (0..slots.len()).collect();
    widest_first.sort_by_key(|&slot| Reverse(spread(&slots[slot])));
    for slot in widest_first {
        let mut packs = std::mem::take(&mut slots[slot]);
        packs.sort_by_key(|pack| Reverse(pack.sequences.len()));
        let mut fewest_first: Vec<usize> = (0..replicas).collect();
        fewest_first.sort_by_key(|&replica| numbers[replica]);
        slots[slot] = vec![MicroBatch::default(); replicas];
        for (pack, replica) in packs.into_iter().zip(fewest_first) {
            numbers[replica] += pack.sequences.len();
            slots[slot][replica] = pack;
        }
    }
    numbers
}

/// The slot and the place of the sequence whose move from one replica to another lengthens its slot least.
fn cheapest_move(slots: &[Vec<MicroBatch>], from: usize, to: usize, workload: &Workload) -> Option<(usize, usize)> {
    let moves = slots.iter().enumerate().flat_map(|(slot, packs)| {
        let longest = packs.iter().map(|pack| pack.ms).max().unwrap_or_default();
        let keeps_one = workload.rules.allow_empty || packs[from].sequences.len() > 1;
        let shortest = packs[from].sequences.iter().enumerate().rev().filter(move |_| keeps_one);
        let fitting = shortest.filter(|&(_, &id)| packs[to].fits(id, workload)).take(1);
        fitting.map(move |(place, &id)| {
            let longer = (packs[to].ms + workload.ms[id] - longest).max(Millis::ZERO);
            ((longer, workload.ms[id], slot), place)
        })
    });
    moves.min_by_key(|&(key, _)| key).map(|((_, _, slot), place)| (slot, place))
}
