//! Stage one: the assignment of sequences to replicas, by greedy trials in random order.

use std::cmp::Reverse;

use hydraulis_core::Millis;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::ClassCost;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::numbers::count;

/// Number of random orders that are tried, each seeded by its number.
const TRIALS: u64 = 50;

/// The replica of each sequence in the best trial; none if some sequence fits on no replica.
pub(super) fn dispatch(batch: &Batch, costs: &[&ClassCost]) -> Option<Vec<usize>> {
    let replicas = Replicas::new(batch, costs);
    if replicas.admitting(batch.longest().0) == 0 {
        return None;
    }
    let (pinned, free): (Vec<usize>, Vec<usize>) = (0..batch.len()).partition(|&id| replicas.admitting(id) == 1);
    let trials = (0..TRIALS).map(|trial| {
        let mut order = free.clone();
        shuffle(&mut order, &mut Pcg64Mcg::seed_from_u64(trial));
        replicas.assigned(pinned.iter().chain(&order).copied())
    });
    trials.min_by_key(|(slowest, _)| *slowest).map(|(_, replica_of)| replica_of)
}

/// The shuffle of Fisher and Yates.
fn shuffle(ids: &mut [usize], random: &mut Pcg64Mcg) {
    for last in (1..ids.len()).rev() {
        // The high word of the product is uniform on 0..=last except for 1 part in 2^50.
        let product = u128::from(random.next_u64()) * (last as u128 + 1);
        ids.swap(last, usize::try_from(product >> 64).unwrap_or(0));
    }
}

/// The replicas, those of the largest cap first, and the time of each sequence on them.
struct Replicas<'a> {
    batch: &'a Batch,
    costs: &'a [&'a ClassCost],
    by_limit: Vec<usize>,
    /// The sequences' times for each distinct scheme; each replica has an index into it.
    times: Vec<Vec<Millis>>,
    class_of: Vec<usize>,
}

/// The load of a replica.
#[derive(Clone, Copy, Default)]
struct Load {
    time: Millis,
    longest: Millis,
}

impl<'a> Replicas<'a> {
    fn new(batch: &'a Batch, costs: &'a [&'a ClassCost]) -> Replicas<'a> {
        let mut by_limit: Vec<usize> = (0..costs.len()).collect();
        by_limit.sort_by_key(|&replica| (Reverse(costs[replica].longest()), replica));
        let (mut times, mut class_of): (Vec<Vec<Millis>>, Vec<usize>) = (Vec::new(), Vec::new());
        // Equal schemes are adjacent in a strategy.
        for (replica, cost) in costs.iter().enumerate() {
            if replica == 0 || cost.scheme() != costs[replica - 1].scheme() {
                times.push(batch.tokens().iter().map(|&tokens| cost.sequence_ms(tokens)).collect());
            }
            class_of.push(times.len() - 1);
        }
        Replicas { batch, costs, by_limit, times, class_of }
    }

    /// The number of replicas that admit a sequence; they come first.
    fn admitting(&self, id: usize) -> usize {
        let tokens = self.batch.tokens()[id];
        self.by_limit.partition_point(|&replica| self.costs[replica].admits(tokens))
    }

    /// Assigns each sequence in this order to the replica that lengthens the slowest least.
    fn assigned(&self, order: impl Iterator<Item = usize>) -> (Millis, Vec<usize>) {
        let mut loads = vec![Load::default(); self.costs.len()];
        let mut slowest = Millis::ZERO;
        let mut replica_of = vec![0; self.batch.len()];
        for id in order {
            let open = &self.by_limit[..self.admitting(id)];
            let (mut best, mut choice) = (Millis::INFINITY, 0);
            for &replica in open {
                let then = slowest.max(self.score(replica, self.with(loads[replica], replica, id)));
                // Among equals an empty replica wins, then the first.
                let is_empty = loads[replica].time == Millis::ZERO;
                if then < best || then == best && is_empty && loads[choice].time > Millis::ZERO {
                    (best, choice) = (then, replica);
                }
            }
            loads[choice] = self.with(loads[choice], choice, id);
            replica_of[id] = choice;
            slowest = best;
        }
        (slowest, replica_of)
    }

    fn with(&self, load: Load, replica: usize, id: usize) -> Load {
        let time = self.times[self.class_of[replica]][id];
        Load { time: load.time + time, longest: load.longest.max(time) }
    }

    /// The stage's closed form of a replica's time: the load, and the longest sequence once more for each further
    /// stage.
    fn score(&self, replica: usize, load: Load) -> Millis {
        load.time + load.longest * count(self.costs[replica].scheme().stages() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hydraulis_core::cost::{CostModel, preset};
    use hydraulis_core::spec::{Cluster, Strategy};

    fn dispatched(strategy: &str, lengths: &[i64]) -> Option<Vec<usize>> {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let strategy: Strategy = strategy.parse().unwrap();
        let costs: Vec<&ClassCost> = strategy.schemes().iter().map(|&scheme| model.scheme(scheme).unwrap()).collect();
        dispatch(&Batch::new(lengths, None).unwrap(), &costs)
    }

    #[test]
    fn a_long_sequence_is_pinned_to_the_only_replica_that_admits_it() {
        // <tp4> admits 7,808 tokens, <tp16> 43,520.
        let replica_of = dispatched("1x<tp16>+2x<tp4>", &[500, 30_000, 500]).unwrap();
        assert_eq!(replica_of[1], 0);
        assert!(replica_of[0] != 0 && replica_of[2] != 0 && replica_of[0] != replica_of[2], "{replica_of:?}");
        assert_eq!(dispatched("4x<tp4>", &[30_000]), None);
    }

    #[test]
    fn equal_sequences_spread_over_equal_replicas() {
        let mut replica_of = dispatched("4x<tp16>", &[1_000; 4]).unwrap();
        replica_of.sort_unstable();
        assert_eq!(replica_of, [0, 1, 2, 3]);
    }

    #[test]
    fn a_shuffle_keeps_every_id() {
        let mut ids: Vec<usize> = (0..100).collect();
        shuffle(&mut ids, &mut Pcg64Mcg::seed_from_u64(3));
        assert!(ids.iter().enumerate().any(|(place, &id)| place != id));
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..100));
    }
}
