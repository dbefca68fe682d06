//! Packs within a token cap, as other systems build them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hydraulis_core::batch::Batch;
use hydraulis_core::cost::ClassCost;
use hydraulis_core::{Millis, Tokens};

/// First-fit decreasing: few packs of any time. `ids` come longest first; a sequence above the cap has its own pack.
pub(super) fn first_fit(ids: &[usize], batch: &Batch, cap: Tokens) -> Vec<Vec<usize>> {
    let mut packs: Vec<(Tokens, Vec<usize>)> = Vec::new();
    for &id in ids {
        let tokens = batch.tokens()[id];
        match packs.iter_mut().find(|(used, _)| *used + tokens <= cap) {
            Some((used, pack)) => {
                *used += tokens;
                pack.push(id);
            }
            None => packs.push((tokens, vec![id])),
        }
    }
    packs.into_iter().map(|(_, pack)| pack).collect()
}

/// `count` packs of balanced time, without the empty ones: each sequence, longest first, joins the pack of least time
/// that has room; an empty pack has room for any sequence. None if a sequence finds no room.
pub(super) fn balanced(ids: &[usize], batch: &Batch, cost: &ClassCost, count: usize) -> Option<Vec<Vec<usize>>> {
    let mut packs = vec![(Tokens(0), Vec::new()); count];
    let mut by_time: BinaryHeap<Reverse<(Millis, usize)>> =
        (0..count).map(|pack| Reverse((Millis::ZERO, pack))).collect();
    let mut full = Vec::new();
    for &id in ids {
        let tokens = batch.tokens()[id];
        let (time, pack) = loop {
            let Reverse((time, pack)) = by_time.pop()?;
            if packs[pack].0 + tokens <= cost.cap() || packs[pack].1.is_empty() {
                break (time, pack);
            }
            full.push(Reverse((time, pack)));
        };
        packs[pack].0 += tokens;
        packs[pack].1.push(id);
        by_time.push(Reverse((time + cost.sequence_ms(tokens), pack)));
        by_time.extend(full.drain(..));
    }
    Some(packs.into_iter().map(|(_, pack)| pack).filter(|pack| !pack.is_empty()).collect())
}

/// The time of a pack's sequences, without the fixed time of a micro-batch.
pub(super) fn sequences_ms(pack: &[usize], batch: &Batch, cost: &ClassCost) -> Millis {
    pack.iter().map(|&id| cost.sequence_ms(batch.tokens()[id])).sum()
}

/// The packs in descending order of time; equal times keep their order.
pub(super) fn slowest_first(mut packs: Vec<Vec<usize>>, batch: &Batch, cost: &ClassCost) -> Vec<Vec<usize>> {
    packs.sort_by_cached_key(|pack| Reverse(sequences_ms(pack, batch, cost)));
    packs
}

/// The packs in this order with the empty micro-batches that memory needs: under the in-flight limit, empty
/// micro-batches separate packs that a replica cannot hold together.
pub(super) fn spaced(packs: Vec<Vec<usize>>, batch: &Batch, cost: &ClassCost) -> Vec<Vec<usize>> {
    let mut packs: Vec<Vec<usize>> = packs.into_iter().filter(|pack| !pack.is_empty()).collect();
    let tokens = |pack: &Vec<usize>| pack.iter().map(|&id| batch.tokens()[id]).sum();
    let places = cost.in_flight_limit().spaced(&packs.iter().map(tokens).collect::<Vec<Tokens>>());
    places.into_iter().map(|place| place.map(|at| std::mem::take(&mut packs[at])).unwrap_or_default()).collect()
}

/// Assigns packs to the replicas in turn.
pub(super) fn in_turn(packs: Vec<Vec<usize>>, replicas: usize) -> super::Work {
    let mut work = vec![Vec::new(); replicas];
    for (index, pack) in packs.into_iter().enumerate() {
        work[index % replicas].push(pack);
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use hydraulis_core::cost::{CostModel, preset};
    use hydraulis_core::spec::{Cluster, MemoryRule};

    #[test]
    fn first_fit_fills_the_first_with_room() {
        let batch = Batch::new(&[7, 5, 4, 3, 1], None).unwrap();
        assert_eq!(first_fit(&[0, 1, 2, 3, 4], &batch, Tokens(10)), [vec![0, 3], vec![1, 2, 4]]);
    }

    #[test]
    fn balanced_packs_keep_the_cap_and_their_number() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let cost = model.scheme("<tp4>".parse().unwrap()).unwrap();
        let batch = Batch::new(&[7_000, 4_000, 3_000, 2_000], None).unwrap();
        let ids = [0, 1, 2, 3];
        // 3,000 tokens fit together with 4,000 and not with 7,000.
        assert_eq!(balanced(&ids, &batch, cost, 3).unwrap(), [vec![0], vec![1], vec![2, 3]]);
        assert_eq!(balanced(&ids, &batch, cost, 2), None);
        assert_eq!(balanced(&ids, &batch, cost, 9).unwrap().len(), 4);
    }

    #[test]
    fn sequences_that_exceed_the_memory_together_are_separated() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let model = model.with_memory(MemoryRule::InFlight);
        // Two consecutive micro-batches may have 51,712 tokens.
        let cost = model.scheme("<tp8,pp2>".parse().unwrap()).unwrap();
        let batch = Batch::new(&[50_000, 30_000, 10_000, 1_000], None).unwrap();
        let packs = balanced(&[0, 1, 2, 3], &batch, cost, 3).unwrap();
        assert_eq!(packs, [vec![0], vec![1], vec![2, 3]]);
        let kept = spaced(packs, &batch, cost);
        assert_eq!(kept, [vec![0], vec![], vec![1], vec![2, 3]]);
        assert_eq!(spaced(kept.clone(), &batch, cost), kept);
    }

    #[test]
    fn packs_are_assigned_in_turn() {
        let packs = vec![vec![0], vec![1], vec![2]];
        assert_eq!(in_turn(packs, 2), [vec![vec![0], vec![2]], vec![vec![1]]]);
    }
}
