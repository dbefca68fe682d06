//! The balance under options that the plain algorithms do not know: times that do not follow from tokens, groups, a
//! second cap, unequal speeds, equal numbers of sequences, and for one barrier per step also a fixed time and limits
//! on the number of micro-batches.
//!
//! The idea is the plain one: the longest sequence first, to the micro-batch or replica that ends first. Each step
//! looks for a micro-batch with room instead of keeping micro-batches in the order of their room, because here a later
//! sequence can have more tokens than an earlier one. Where a sequence finds no room, the largest sequence goes first,
//! and at last best-fit decreasing decides.

mod bins;
pub(super) mod bound;
pub(super) mod by_slot;
pub(super) mod by_step;
mod equal_numbers;
mod rounds;

use std::cmp::Reverse;

use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// All sequences in the order of the greater of their shares of both caps, largest first.
fn largest_first(workload: &Workload, ids: &[usize]) -> Vec<usize> {
    let share = |id: usize| {
        let tokens = workload.tokens[id].as_f64() / workload.cap.as_f64();
        let extra = workload.extra[id].as_f64() / workload.extra_cap.as_f64().max(1.0);
        Millis(tokens.max(extra))
    };
    let mut ids = ids.to_vec();
    ids.sort_by_key(|&id| (Reverse(share(id)), id));
    ids
}

/// The micro-batches that best-fit decreasing opens for these sequences.
fn packed(workload: &Workload, ids: &[usize]) -> Vec<MicroBatch> {
    let mut packs: Vec<MicroBatch> = Vec::new();
    for id in largest_first(workload, ids) {
        if workload.is_cancelled(packs.len()) {
            break;
        }
        match fullest(&packs, id, workload) {
            Some(at) => packs[at].take(id, workload),
            None => packs.push(MicroBatch::of(vec![id], workload)),
        }
    }
    for pack in &mut packs {
        sort(pack, workload);
    }
    packs
}

/// The micro-batch of least room in which a sequence fits.
fn fullest(packs: &[MicroBatch], id: usize, workload: &Workload) -> Option<usize> {
    let fitting = packs.iter().enumerate().filter(|(_, pack)| pack.fits(id, workload));
    fitting.max_by_key(|&(at, pack)| (pack.tokens, Reverse(at))).map(|(at, _)| at)
}

/// Assigns each micro-batch, longest first, to the replica that ends first among those with fewer than `number`.
fn assigned(mut packs: Vec<MicroBatch>, number: usize, workload: &Workload) -> Vec<Vec<MicroBatch>> {
    packs.sort_by_key(|pack| Reverse(pack.ms));
    let mut replicas = vec![Vec::new(); workload.replicas];
    let mut work = vec![Millis::ZERO; workload.replicas];
    for pack in packs {
        if workload.is_cancelled(workload.replicas) {
            break;
        }
        let open = (0..workload.replicas).filter(|&at| replicas[at].len() < number);
        let Some(at) = open.min_by_key(|&at| (workload.time(work[at] + pack.ms, 0, at), at)) else { break };
        work[at] += pack.ms;
        replicas[at].push(pack);
    }
    replicas
}

fn sort(pack: &mut MicroBatch, workload: &Workload) {
    pack.sequences.sort_unstable_by_key(|&id| workload.order(id));
}
