//! The balance with the fewest micro-batches for one barrier per step: sequences are packed over all replicas first,
//! and the micro-batches are assigned to replicas afterwards.
//!
//! Where tokens nearly fill the slots, replicas of equal time have unequal tokens, and many replicas need one
//! micro-batch more. This balance therefore packs the sequences by best-fit decreasing without regard to replicas.
//! Each micro-batch, longest first, goes to the replica of least time that has a free slot. Then replicas swap
//! micro-batches, and parts of micro-batches, until their totals are nearly equal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::batching::balance::exchange::{Exchange, Part, ROUNDING, Side, best_exchange, parts};
use crate::batching::balance::fullest::packed;
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::workload::Workload;
use crate::units::{Millis, count};

/// The micro-batches of each replica, at most `slots` per replica; `None` where the sequences need more.
pub(super) fn replicas(workload: &Workload, slots: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let mut packs = packed(workload, &workload.longest_first);
    if packs.len() > slots * workload.replicas {
        return None;
    }
    packs.resize_with(slots * workload.replicas, MicroBatch::default);
    let mut replicas = assigned(packs, slots, workload.replicas);
    equalize(&mut replicas, workload, true);
    let filled = |packs: Vec<MicroBatch>| packs.into_iter().filter(|pack| !pack.sequences.is_empty()).collect();
    Some(replicas.into_iter().map(filled).collect())
}

/// Shortens the longest replica by swaps of micro-batches, if these are permitted, and by exchanges of their parts.
pub(super) fn equalize(replicas: &mut [Vec<MicroBatch>], workload: &Workload, swaps: bool) {
    let budget = workload.rules.budget.by_step;
    let is_cancelled = |long: &Replica, short: &Replica| workload.is_cancelled(long.packs.len() * short.packs.len());
    let total = |(at, packs): (usize, &mut Vec<MicroBatch>)| Replica::new(at, std::mem::take(packs), workload);
    let mut totals: Vec<Replica> = replicas.iter_mut().enumerate().map(total).collect();
    let work: Millis = totals.iter().map(|replica| replica.total).sum();
    let enough = Millis(work.0 / workload.rules.speed() * (1.0 + budget.balanced));
    while swaps
        && change_longest(&mut totals, enough, budget.partners, |long, short| {
            (!is_cancelled(long, short)).then(|| swap(long, short, workload)).flatten()
        })
    {}
    let mut pairs = budget.pairs * workload.replicas;
    while change_longest(&mut totals, enough, budget.partners, |long, short| {
        pairs = pairs.checked_sub(1)?;
        exchange(long, short, enough, workload)
    }) {}
    for (packs, replica) in replicas.iter_mut().zip(totals) {
        *packs = replica.packs;
    }
}

/// A replica with its micro-batches, of which some may be empty.
#[derive(Clone, Debug)]
struct Replica {
    at: usize,
    packs: Vec<MicroBatch>,
    /// The work of all micro-batches, with their fixed time.
    total: Millis,
    pace: f64,
}

impl Replica {
    fn new(at: usize, packs: Vec<MicroBatch>, workload: &Workload) -> Replica {
        let fixed = workload.rules.fixed * count(packs.len());
        let total = packs.iter().map(|pack| pack.ms).sum::<Millis>() + fixed;
        Replica { at, packs, total, pace: workload.rules.paces[at] }
    }

    /// The time of the replica.
    fn time(&self) -> Millis {
        self.total * self.pace
    }

    /// One micro-batch and its parts, for the comparison of the replica's total with another's.
    fn side<'a>(&'a self, place: usize, parts: &'a [Part]) -> Side<'a> {
        Side { micro_batch: &self.packs[place], parts, total: self.total, replica: self.at }
    }

    /// A copy of the replica with another micro-batch in one place.
    fn with(&self, place: usize, pack: MicroBatch, workload: &Workload) -> Replica {
        let mut packs = self.packs.clone();
        packs[place] = pack;
        Replica::new(self.at, packs, workload)
    }
}

/// Assigns each micro-batch, longest first, to the replica of least time that has a free slot.
fn assigned(mut packs: Vec<MicroBatch>, slots: usize, replicas: usize) -> Vec<Vec<MicroBatch>> {
    packs.sort_by_key(|pack| Reverse(pack.ms));
    let mut assigned = vec![Vec::new(); replicas];
    let mut by_time: BinaryHeap<Reverse<(Millis, usize)>> =
        (0..replicas).map(|replica| Reverse((Millis::ZERO, replica))).collect();
    for pack in packs {
        let Some(Reverse((time, replica))) = by_time.pop() else { break };
        let total = time + pack.ms;
        assigned[replica].push(pack);
        if assigned[replica].len() < slots {
            by_time.push(Reverse((total, replica)));
        }
    }
    assigned
}

/// Shortens the longest replica, if it is longer than `enough`, by a `change` with one of the `most_partners` shortest replicas;
/// returns whether a change succeeded.
fn change_longest(
    replicas: &mut [Replica],
    enough: Millis,
    most_partners: usize,
    mut change: impl FnMut(&Replica, &Replica) -> Option<(Replica, Replica)>,
) -> bool {
    let mut by_time: Vec<usize> = (0..replicas.len()).collect();
    by_time.sort_by_key(|&at| (replicas[at].time(), Reverse(at)));
    let Some((&longest, partners)) = by_time.split_last() else { return false };
    if replicas[longest].time() <= enough {
        return false;
    }
    for &partner in partners.iter().take(most_partners) {
        if let Some(changed) = change(&replicas[longest], &replicas[partner]) {
            (replicas[longest], replicas[partner]) = changed;
            return true;
        }
    }
    false
}

/// Both replicas after the swap of two micro-batches that makes the longer replica shortest; `None` where no swap
/// shortens it.
fn swap(long: &Replica, short: &Replica, workload: &Workload) -> Option<(Replica, Replica)> {
    let pairs =
        long.packs.iter().enumerate().flat_map(|one| short.packs.iter().enumerate().map(move |other| (one, other)));
    let swapped = pairs.map(|((give, given), (take, taken))| {
        let long_after = (long.total - given.ms + taken.ms) * long.pace;
        let short_after = (short.total - taken.ms + given.ms) * short.pace;
        (long_after.max(short_after), give, take)
    });
    let (longest, give, take) = swapped.min()?;
    let is_shorter = longest < long.time() * (1.0 - ROUNDING);
    is_shorter.then(|| {
        let (given, taken) = (long.packs[give].clone(), short.packs[take].clone());
        (long.with(give, taken, workload), short.with(take, given, workload))
    })
}

/// Both replicas after an exchange of parts of two micro-batches. The search takes the exchange that makes the longer
/// replica shortest, and ends at the first pair of micro-batches after which neither replica is longer than `enough`.
fn exchange(long: &Replica, short: &Replica, enough: Millis, workload: &Workload) -> Option<(Replica, Replica)> {
    let of = |replica: &Replica| replica.packs.iter().map(|pack| parts(pack, workload)).collect::<Vec<Vec<Part>>>();
    let (given, taken) = (of(long), of(short));
    let mut best: Option<(Exchange, usize, usize)> = None;
    for (give, take) in (0..given.len()).flat_map(|give| (0..taken.len()).map(move |take| (give, take))) {
        let long = long.side(give, &given[give]);
        let short = short.side(take, &taken[take]);
        if workload.is_cancelled(long.parts.len() * workload.rules.budget.counterparts) {
            return None;
        }
        let Some(exchange) = best_exchange(long, short, workload) else { continue };
        if best.is_none_or(|(best, ..)| exchange.longest < best.longest) {
            best = Some((exchange, give, take));
        }
        if exchange.longest <= enough {
            break;
        }
    }
    let (exchange, give, take) = best?;
    let (one, other) = exchange.carried_out(&long.packs[give], &short.packs[take], workload);
    Some((long.with(give, one, workload), short.with(take, other, workload)))
}
