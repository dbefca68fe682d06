//! The constrained balance for one barrier per step.

use crate::batching::balance::by_packs::equalize;
use crate::batching::balance::constrained::{assigned, fullest, largest_first, packed, sort};
use crate::batching::balance::micro_batch::MicroBatch;
use crate::batching::balance::no_empty::{Group, fill_empty};
use crate::batching::balance::workload::Workload;
use crate::units::Millis;

/// The micro-batches of each replica. Where no packing into a permitted number of micro-batches is found, the error is
/// the greatest number of a replica that was tried; `None` for the exact number of the options.
pub(in crate::batching::balance) fn replicas(workload: &Workload) -> Result<Vec<Vec<MicroBatch>>, Option<usize>> {
    let exact = workload.rules.numbers.exact;
    let longest_first = &workload.longest_first;
    let mut replicas = by_time(workload, longest_first, exact)
        .or_else(|| by_time(workload, &largest_first(workload, longest_first), exact))
        .or_else(|| best_fit(workload, exact?))
        .ok_or(None)?;
    for own in &mut replicas {
        let number = own.len().max(workload.rules.least());
        own.resize_with(workload.rules.numbers.permitted(number).ok_or(None)?, MicroBatch::default);
    }
    if !workload.rules.allow_empty && !fill_empty(&mut replicas, Group::Replica, workload) {
        return Err(replicas.iter().map(Vec::len).max());
    }
    replicas.iter_mut().flatten().for_each(|pack| sort(pack, workload));
    equalize(&mut replicas, workload, !workload.rules.equal_sequences);
    Ok(replicas)
}

/// Assigns each sequence to the replica that ends first, and there to the fullest micro-batch with room. A replica has
/// at most `most` micro-batches; `None` where a sequence finds no room.
fn by_time(workload: &Workload, ids: &[usize], most: Option<usize>) -> Option<Vec<Vec<MicroBatch>>> {
    let rules = &workload.rules;
    let mut quotas = Quotas::new(ids.len(), workload.replicas, rules.fewest(ids.len()), rules.equal_sequences);
    let mut replicas: Vec<Vec<MicroBatch>> = vec![Vec::new(); workload.replicas];
    let mut work = vec![Millis::ZERO; workload.replicas];
    for &id in ids {
        if workload.is_cancelled(workload.replicas) {
            return None;
        }
        let mut best: Option<(Millis, usize, Option<usize>)> = None;
        for (replica, packs) in replicas.iter().enumerate().filter(|&(replica, _)| quotas.admit(replica)) {
            let least = workload.time(work[replica] + workload.ms[id], packs.len(), replica);
            if best.is_some_and(|(end, ..)| least >= end) {
                continue;
            }
            if workload.is_cancelled(packs.len()) {
                return None;
            }
            let place = fullest(packs, id, workload);
            if place.is_none() && most.is_some_and(|most| packs.len() >= most) {
                continue;
            }
            let number = packs.len() + usize::from(place.is_none());
            let end = workload.time(work[replica] + workload.ms[id], number, replica);
            if best.is_none_or(|(least, ..)| end < least) {
                best = Some((end, replica, place));
            }
        }
        let (_, replica, place) = best?;
        work[replica] += workload.ms[id];
        quotas.take(replica);
        match place {
            Some(place) => replicas[replica][place].take(id, workload),
            None => replicas[replica].push(MicroBatch::of(vec![id], workload)),
        }
    }
    for own in &mut replicas {
        let ids: Vec<usize> = own.iter().flat_map(|pack| pack.sequences.iter().copied()).collect();
        let again = packed(workload, &ids);
        if again.len() < own.len() {
            *own = again;
        }
    }
    Some(replicas)
}

/// Packs the sequences first and assigns the micro-batches afterwards, `number` to each replica.
fn best_fit(workload: &Workload, number: usize) -> Option<Vec<Vec<MicroBatch>>> {
    let packs = packed(workload, &workload.longest_first);
    let fits = !workload.rules.equal_sequences && packs.len() <= number * workload.replicas;
    fits.then(|| assigned(packs, number, workload))
}

/// The sequences of each replica so far, of which each shall have from `fewest` to `most`.
#[derive(Clone, Debug)]
pub(super) struct Quotas {
    taken: Vec<usize>,
    fewest: usize,
    most: usize,
    /// The sequences that are not assigned yet.
    left: usize,
    /// The sequences that the replicas lack for their fewest.
    lacking: usize,
}

impl Quotas {
    pub(super) fn new(sequences: usize, replicas: usize, fewest: usize, are_equal: bool) -> Quotas {
        let most = if are_equal { sequences.div_ceil(replicas) } else { sequences };
        Quotas { taken: vec![0; replicas], fewest, most, left: sequences, lacking: fewest * replicas }
    }

    /// Whether a replica may have one more, so that enough are left for the replicas with too few.
    pub(super) fn admit(&self, replica: usize) -> bool {
        let taken = self.taken[replica];
        taken < self.most && (taken < self.fewest || self.left > self.lacking)
    }

    pub(super) fn take(&mut self, replica: usize) {
        self.lacking -= usize::from(self.taken[replica] < self.fewest);
        self.taken[replica] += 1;
        self.left -= 1;
    }
}
