//! Packings that overlap the transfers at both ends of a step, for replicas without a pipeline.
//!
//! The time of such a replica is the sum of its micro-batches, whatever sequences are in which and in whatever order. Its
//! first micro-batch overlaps the arrival of parameters, and its last one the departure of gradients: how much each needs
//! is the class's [`Exposure`]. Gradients have more bytes, and backward takes most of a micro-batch, so on slow links a
//! long last micro-batch overlaps most. Where transfers do not count, the longest micro-batches are at both ends.

use std::sync::Arc;

use crate::construct::pack::order::longest_at_both_ends;
use crate::construct::pack::{Packer, Packing};
use crate::timing::Exposure;
use crate::units::{Millis, Tokens, count};

impl Packer<'_> {
    /// The packing changed to overlap transfers at both ends of a step, which never ends later for it. A pipeline's packing
    /// stays.
    pub fn overlapping(&mut self, ids: &[usize], packing: Packing) -> Packing {
        if self.cost.scheme().pp() > 1 {
            return packing;
        }
        match self.exposure.clone() {
            Some(exposure) => self.least_exposed(ids, packing, &exposure),
            None => self.longest_at_both_ends(ids, packing),
        }
    }

    /// The longest micro-batch first, the next longest last, and of exactly two, both of about equal length.
    fn longest_at_both_ends(&mut self, ids: &[usize], mut packing: Packing) -> Packing {
        if packing.micro_batches.len() == 2 {
            // First-fit leaves the second micro-batch only the rest of the first: perhaps a single short sequence.
            let evened = self.filled_towards(ids, [Millis::ZERO; 2].into_iter());
            packing =
                evened.filter(|evened| evened.ms <= packing.ms || evened.ms.is_close(packing.ms)).unwrap_or(packing);
        }
        longest_at_both_ends(&mut packing.micro_batches, |bin| bin.iter().map(|&id| self.ms[id]).sum());
        packing
    }

    /// The packing, or one of equally many micro-batches with evened or with long ends, whichever ends the step first.
    fn least_exposed(&mut self, ids: &[usize], packing: Packing, exposure: &Exposure) -> Packing {
        let number = packing.micro_batches.len();
        let mut best = self.arranged(packing, exposure);
        let [first, last] = exposure.enough();
        if number < 2 || best.0 <= best.1.ms + exposure.ms(first, last) * (1.0 + 1e-9) {
            return best.1;
        }
        let load: Millis = ids.iter().map(|&id| self.ms[id]).sum();
        let tokens = ids.iter().map(|&id| self.tokens[id]).sum();
        let [first, last] = self.ends(exposure, load, tokens, number);
        let fixed = self.cost.fixed_ms();
        let middle = (load + fixed * count(number) - first - last) * (1.0 / count(number.max(3) - 2));
        let long = (0..number).map(|place| match place {
            0 => first,
            place if place + 1 == number => last,
            _ => middle,
        });
        let long = long.map(|time| time - fixed).collect::<Vec<_>>();
        for targets in [vec![Millis::ZERO; number], long] {
            if let Some(filled) = self.filled_towards(ids, targets.into_iter()) {
                let filled = self.arranged(filled, exposure);
                if filled.0 < best.0 {
                    best = filled;
                }
            }
        }
        best.1
    }

    /// A packing with its two longest micro-batches at the ends, in the better order; and the end of its step.
    fn arranged(&self, mut packing: Packing, exposure: &Exposure) -> (Millis, Packing) {
        let time = |bin: &Vec<usize>| self.cost.ms_of_work(bin.iter().map(|&id| self.ms[id]).sum());
        let micro_batches = &mut packing.micro_batches;
        longest_at_both_ends(micro_batches, time);
        let ends = [micro_batches.first(), micro_batches.last()].map(|bin| bin.map(time).unwrap_or_default());
        let [longest, next] = ends;
        let exposed = [exposure.ms(longest, next), exposure.ms(next, longest)];
        if exposed[1] < exposed[0] {
            let end = micro_batches.len() - 1;
            micro_batches.swap(0, end);
        }
        (packing.ms + exposed[0].min(exposed[1]), packing)
    }

    /// Equally many micro-batches of about these times, those without a sequence left out; none if a sequence finds no room.
    fn filled_towards(&mut self, ids: &[usize], targets: impl Iterator<Item = Millis>) -> Option<Packing> {
        if !self.buffers.next.bins.towards(ids, self.tokens, &self.ms, self.cost.cap(), targets) {
            return None;
        }
        let mut micro_batches = self.buffers.next.bins.lists(ids);
        micro_batches.retain(|bin| !bin.is_empty());
        let times = self.times(&micro_batches);
        let ms = self.makespan(&times);
        Some(Packing { micro_batches, ms })
    }

    /// The exposed time of these sequences in the fewest micro-batches, by estimate; nothing where transfers do not count.
    pub(super) fn exposed_ms(&mut self, ids: &[usize]) -> Millis {
        let Some(exposure) = self.exposure.clone() else { return Millis::ZERO };
        let load = ids.iter().map(|&id| self.ms[id]).sum();
        let tokens = ids.iter().map(|&id| self.tokens[id]).sum();
        let number = self.fewest(ids);
        let [first, last] = self.ends(&exposure, load, tokens, number);
        exposure.ms(first, last)
    }

    /// The same from sums alone.
    pub(super) fn estimated_exposure(&self, load: Millis, tokens: Tokens) -> Millis {
        self.exposure.as_ref().map_or(Millis::ZERO, |exposure: &Arc<Exposure>| {
            let [first, last] = self.ends(exposure, load, tokens, tokens.div_ceil(self.cost.cap()));
            exposure.ms(first, last)
        })
    }

    /// Times of the first and of the last micro-batch of `number` that overlap most, as if sequences could be divided.
    fn ends(&self, exposure: &Exposure, load: Millis, tokens: Tokens, number: usize) -> [Millis; 2] {
        if number < 2 {
            return [self.cost.ms_of_work(load); 2];
        }
        let fixed = self.cost.fixed_ms();
        let full = load * (self.cost.cap().as_f64() / tokens.as_f64()).min(1.0) + fixed;
        let all = load + fixed * count(number);
        let enough = exposure.enough().map(|enough| enough.min(full));
        let [of_first, of_last] = exposure.shares();
        // The end that overlaps more of its micro-batch's time takes the time that it needs, the other one the rest.
        let served = usize::from(of_last >= of_first);
        let rest = (all - enough[served]).max(Millis::ZERO);
        let mut ends = enough;
        if number == 2 {
            ends[1 - served] = rest.min(full);
            ends[served] = all - ends[1 - served];
        } else {
            ends[1 - served] = rest.min(enough[1 - served]);
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::capacity::Capacities;
    use crate::cost::{CostModel, preset};
    use crate::spec::{CapacityBudget, Cluster, PackingBudget};
    use crate::timing::TransferTimes;

    #[test]
    fn the_first_and_the_last_micro_batch_overlap_transfers() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(model, CapacityBudget::ONLINE);
        let overlapping = |scheme: &str, lengths: &[i64]| {
            let batch = Batch::new(lengths, None).unwrap();
            let ids: Vec<usize> = (0..lengths.len()).collect();
            let mut packer =
                Packer::new(capacities.scheme(scheme.parse().unwrap()).unwrap(), &batch, PackingBudget::ONLINE);
            let plain = packer.pack(&ids);
            let overlapping = packer.overlapping(&ids, plain.clone());
            assert!(overlapping.ms.is_close(plain.ms));
            assert!(packer.totals(&overlapping.micro_batches).iter().all(|&tokens| tokens <= packer.cost.cap()));
            (plain.micro_batches, overlapping.micro_batches)
        };
        // <tp4> holds 7,808 tokens: first-fit leaves a single short sequence over.
        let (plain, two) = overlapping("<tp4>", &[4_000, 3_800, 26]);
        assert_eq!((plain, two), (vec![vec![0, 1], vec![2]], vec![vec![0], vec![1, 2]]));
        // Two even micro-batches would exceed the cap.
        let (plain, two) = overlapping("<tp4>", &[3_904, 3_904, 2_700, 2_600, 2_500]);
        assert_eq!(plain, two);
        // Of three the shortest stands in the middle.
        let (_, three) = overlapping("<tp4>", &[7_800, 7_800, 500]);
        assert_eq!(three, [[0], [2], [1]]);
        let (plain, pipeline) = overlapping("<tp4,pp2>", &[4_000, 3_800, 26]);
        assert_eq!(plain, pipeline);
    }

    /// On a slow link the last micro-batch is as long as memory allows. Of every way to pack the sequences in two
    /// micro-batches, none ends the step more than 2 % earlier; the rule without transfers ends it much later.
    #[test]
    fn a_packing_leaves_little_more_exposed_than_the_best() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(model, CapacityBudget::ONLINE);
        let capacity = capacities.scheme("<tp4>".parse().unwrap()).unwrap();
        let lengths = [2_300, 1_900, 1_600, 1_200, 900, 800, 650, 500, 350, 300, 200, 90];
        let batch = Batch::new(&lengths, None).unwrap();
        let ids: Vec<usize> = (0..lengths.len()).collect();
        for (parameters, gradients, gain) in [(14.0, 28.0, 0.04), (1.0, 20.0, 0.05), (20.0, 1.0, 0.0), (0.1, 0.2, 0.0)]
        {
            let times = |ms: f64| vec![Millis(ms); 62];
            let (parameters, gradients) = (times(parameters), times(gradients));
            let transfers = TransferTimes { parameters, gradients, ..TransferTimes::default() };
            let cost = capacity.cost();
            let exposure =
                Arc::new(Exposure::new(&transfers, cost.stage_multipliers()[0], cost.forward_share()).unwrap());
            let mut packer = Packer::new(capacity, &batch, PackingBudget::ONLINE).exposed(Some(Arc::clone(&exposure)));
            let step = |packer: &Packer, packing: &Packing| {
                let times = packer.times(&packing.micro_batches);
                packing.ms + exposure.ms(times[0], times[times.len() - 1])
            };
            let plain = packer.pack(&ids);
            assert_eq!(plain.micro_batches.len(), 2);
            let packed = packer.overlapping(&ids, plain.clone());
            assert!(packer.totals(&packed.micro_batches).iter().all(|&tokens| tokens <= cost.cap()));
            let mut sorted = packed.micro_batches.concat();
            sorted.sort_unstable();
            assert_eq!(sorted, ids);
            let mut best = Millis::INFINITY;
            for way in 1..(1_usize << ids.len()) - 1 {
                let (last, first): (Vec<usize>, Vec<usize>) = ids.iter().partition(|&&id| way >> id & 1 == 1);
                let micro_batches = vec![first, last];
                if packer.totals(&micro_batches).iter().all(|&tokens| tokens <= cost.cap()) {
                    best = best.min(step(&packer, &Packing { micro_batches, ms: plain.ms }));
                }
            }
            assert!(step(&packer, &packed) <= best * 1.02, "{transfers:?} {packed:?} {best:?}");
            let estimate = packer.time(&ids);
            assert!(estimate <= best * 1.02 && estimate >= best * 0.95, "{estimate:?} {best:?}");
            let usual = Packer::new(capacity, &batch, PackingBudget::ONLINE).overlapping(&ids, plain);
            assert!(step(&packer, &packed) <= step(&packer, &usual) * (1.0 - gain + 1e-9), "{packed:?} {usual:?}");
        }
    }
}
