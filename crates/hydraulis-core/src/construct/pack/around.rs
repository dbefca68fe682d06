//! The times of a pipeline's micro-batches around one that takes longer than all others.
//!
//! While that one passes through the stages, each stage computes parts of its neighbours. The times that end earliest, by
//! linear programs over the critical paths, rise to the longest by `(p + 1) / (p - 1)` from one to the next, as in the best
//! pipeline of many micro-batches, and fall slowly after it. Times that rise so over `p - 1` micro-batches and fall evenly end
//! at most 3 % after the optimum, on 2 and 4 stages.

use std::borrow::Cow;

use crate::construct::pack::packer::Packer;
use crate::units::{Millis, count};

/// The times of `number` micro-batches of `all` together, of which one takes `longest`, on this many stages, two or
/// more; after the longest they fall evenly, to the share `fall` of the first of them one place after the last.
fn around(longest: Millis, all: Millis, number: usize, stages: usize, fall: f64) -> Vec<f64> {
    let ratio = count(stages - 1) / count(stages + 1);
    let before = (stages - 1).min((number - 1) / 2);
    let mut times: Vec<f64> =
        std::iter::successors(Some(longest.0), |time| Some(time * ratio)).take(before + 1).collect();
    times.reverse();
    let rest = (all.0 - times.iter().sum::<f64>()).max(0.0);
    let after = number - 1 - before;
    let falling = |place: usize| 1.0 - (1.0 - fall) * count(place) / count(after);
    let sum: f64 = (0..after).map(falling).sum();
    times.extend((0..after).map(|place| rest * falling(place) / sum));
    times
}

impl Packer<'_> {
    /// If the longest sequence takes longer than the longest of `middle` micro-batches, fills a few micro-batches whose times
    /// rise and fall around it. With the in-flight limit, micro-batches of more than one sequence stay within the cap here.
    pub(super) fn fill_around_longest(&mut self, ids: &[usize], load: Millis, fewest: usize, middle: usize) {
        let (capacity, longest) = (self.capacity, self.cost.ms_of_work(self.ms[ids[0]]));
        let reaches = |count: &usize| capacity.longest(*count, load) >= longest;
        if reaches(&middle) {
            return;
        }
        let reaching = (fewest..middle).rev().find(reaches).unwrap_or(fewest);
        let (fixed, stages, fall) = (self.cost.fixed_ms(), self.cost.scheme().stages(), self.budget.fall);
        let shape = |number: usize| around(longest, load + fixed * count(number), number, stages, fall);
        for number in reaching.saturating_sub(1).max(fewest)..(reaching + 3).min(ids.len() + 1) {
            let targets = shape(number);
            let targets = targets.iter().map(|&time| Millis(time) - fixed);
            if self.buffers.next.bins.towards(ids, self.tokens, &self.ms, self.cost.cap(), targets) {
                self.keep_better(|number| Cow::Owned(shape(number)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::capacity::Capacities;
    use crate::cost::{CostModel, preset};
    use crate::pipeline::{MakespanBuffers, makespan};
    use crate::spec::{CapacityBudget, Cluster, PackingBudget};

    fn end(times: &[f64], stages: usize) -> f64 {
        let times: Vec<Millis> = times.iter().copied().map(Millis).collect();
        makespan(&times, &vec![1.0; stages], 1.0 / 3.0, &mut MakespanBuffers::default()).0
    }

    /// Ends of the optimum by linear programming, for a longest micro-batch of 1,000 and others of `work` together, with a
    /// fixed cost of 10 each.
    #[test]
    fn a_shape_ends_near_the_optimum() {
        for (stages, work, optimum) in
            [(2, 1_000.0, 2_582.0), (2, 3_000.0, 4_450.0), (4, 2_000.0, 4_976.0), (4, 5_000.0, 7_389.0)]
        {
            let shape = |number: usize| {
                around(
                    Millis(1_000.0),
                    Millis(1_000.0 + work + 10.0 * count(number - 1)),
                    number,
                    stages,
                    PackingBudget::ONLINE.fall,
                )
            };
            let ends = (2..14).map(|number| end(&shape(number), stages));
            let best = ends.fold(f64::INFINITY, f64::min);
            assert!((optimum - 1.0..optimum * 1.03).contains(&best), "{stages} {work}: {best} {optimum}");
        }
    }

    #[test]
    fn one_or_two_micro_batches_have_a_shape() {
        assert_eq!(around(Millis(5.0), Millis(5.0), 1, 4, 0.2), [5.0]);
        assert_eq!(around(Millis(5.0), Millis(7.0), 2, 4, 0.2), [5.0, 2.0]);
    }

    /// A sequence longer than the best micro-batches goes through two stages next to few long ones: within 4 % of the best of
    /// all ways to fill up to four micro-batches in order.
    #[test]
    fn a_long_sequence_has_long_micro_batches_next_to_it() {
        let mut profile = preset("llama-32b-a800").unwrap();
        profile.schemes.iter_mut().for_each(|entry| (entry.fixed_ms, entry.least_ms) = (5.0, 60.0));
        let model = CostModel::new(profile, Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(model, CapacityBudget::ONLINE);
        let capacity = capacities.scheme("<tp8,pp2>".parse().unwrap()).unwrap();
        for lengths in
            [[7_000, 900, 800, 700, 600, 500, 400, 300, 200], [7_000, 400, 390, 380, 370, 360, 350, 340, 330]]
        {
            let batch = Batch::new(&lengths, None).unwrap();
            let ids: Vec<usize> = (0..lengths.len()).collect();
            let mut packer = Packer::new(capacity, &batch, PackingBudget::ONLINE);
            let mut best = Millis::INFINITY;
            for way in 0..4_usize.pow(9) {
                let (mut micro_batches, mut left) = (vec![Vec::new(); 4], way);
                for &id in &ids {
                    micro_batches[left % 4].push(id);
                    left /= 4;
                }
                micro_batches.retain(|micro_batch| !micro_batch.is_empty());
                let times = packer.times(&micro_batches);
                best = best.min(packer.makespan(&times));
            }
            let packing = packer.pack(&ids);
            assert!(packing.ms <= best * 1.04, "{packing:?} {best:?}");
        }
    }
}
