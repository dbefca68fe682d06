//! Equal numbers of sequences for replicas of unequal speed: in each round, every replica takes one.
//!
//! A round has as many sequences as there are replicas, next in order. Its sequences, longest first, go to the first
//! replica by a rule among those without one in this round. The replicas then have similar totals, and each packs its
//! own.

use std::collections::VecDeque;

use crate::batching::balance::constrained::packed;
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// The order in which replicas receive the sequences of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The replica that ends first with the sequence. Among equal speeds, it is the one of least time so far.
    FirstToEnd,
    /// The replica with the least time so far. A slow replica may receive the longest sequence, but where caps leave
    /// little room, the replicas' tokens are more alike.
    LeastTime,
}

impl Rule {
    pub(super) const ALL: [Rule; 2] = [Rule::FirstToEnd, Rule::LeastTime];
}

/// `number` micro-batches for each replica; `None` where a replica's sequences find no room.
pub(super) fn replicas(workload: &Workload, ids: &[usize], number: usize, rule: Rule) -> Option<Vec<Vec<MicroBatch>>> {
    let mut assigned: Vec<Vec<usize>> = vec![Vec::new(); workload.replicas];
    let mut work = vec![Millis::ZERO; workload.replicas];
    let mut by_speed = by_speed(workload);
    for round in ids.chunks(workload.replicas) {
        let mut round = round.to_vec();
        round.sort_unstable_by_key(|&id| workload.order(id));
        for (id, replica) in round_of(workload, round, rule, &mut by_speed, &work) {
            assigned[replica].push(id);
            work[replica] += workload.ms[id];
        }
        if workload.is_cancelled(workload.replicas) {
            return None;
        }
    }
    assigned.iter().map(|own| by_time(workload, own, number).or_else(|| best_fit(workload, own, number))).collect()
}

/// The replicas of each speed.
fn by_speed(workload: &Workload) -> Vec<Vec<usize>> {
    let paces = &workload.rules.paces;
    let mut replicas: Vec<usize> = (0..workload.replicas).collect();
    replicas.sort_by(|&one, &other| paces[one].total_cmp(&paces[other]));
    replicas.chunk_by(|&one, &other| paces[one].total_cmp(&paces[other]).is_eq()).map(<[usize]>::to_vec).collect()
}

/// The replica of each sequence of a round. Among replicas of one speed, the one with the least work is first for
/// every sequence, so a sequence is compared with one replica of each speed.
fn round_of(
    workload: &Workload,
    round: Vec<usize>,
    rule: Rule,
    by_speed: &mut [Vec<usize>],
    work: &[Millis],
) -> Vec<(usize, usize)> {
    let mut free: Vec<VecDeque<usize>> = Vec::with_capacity(by_speed.len());
    for replicas in by_speed {
        replicas.sort_by_key(|&replica| (workload.time(work[replica], 0, replica), replica));
        free.push(replicas.iter().copied().collect());
    }
    let mut assigned = Vec::with_capacity(round.len());
    for id in round {
        if workload.is_cancelled(free.len()) {
            break;
        }
        let more = if rule == Rule::FirstToEnd { workload.ms[id] } else { Millis::ZERO };
        let end = |replica: usize| workload.time(work[replica] + more, 0, replica);
        let heads = free.iter().enumerate().filter_map(|(speed, queue)| Some((speed, *queue.front()?)));
        let Some((speed, replica)) = heads.min_by_key(|&(_, replica)| (end(replica), replica)) else { break };
        free[speed].pop_front();
        assigned.push((id, replica));
    }
    assigned
}

/// `number` micro-batches of one replica, each sequence in the one of least time that has room.
fn by_time(workload: &Workload, ids: &[usize], number: usize) -> Option<Vec<MicroBatch>> {
    let mut packs = vec![MicroBatch::default(); number];
    for &id in ids {
        if workload.is_cancelled(number) {
            return None;
        }
        let fitting = packs.iter_mut().filter(|pack| pack.fits(id, workload));
        fitting.min_by_key(|pack| pack.ms)?.take(id, workload);
    }
    Some(packs)
}

fn best_fit(workload: &Workload, ids: &[usize], number: usize) -> Option<Vec<MicroBatch>> {
    let mut packs = packed(workload, ids);
    let fits = packs.len() <= number;
    packs.resize_with(number, MicroBatch::default);
    fits.then_some(packs)
}
