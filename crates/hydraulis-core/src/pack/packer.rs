//! How many micro-batches, which sequences in each, and in which order.

use crate::cost::SchemeCost;
use crate::lengths::Batch;
use crate::pack::bins::{balanced, first_fit, first_fit_count};
use crate::pack::order::{small_at_both_ends, swap_pairs};
use crate::schedule::{MakespanBuffers, makespan};
use crate::units::{Millis, Tokens, count, whole};

/// Pair swaps tried when a pipeline's final order is polished; counted, not timed, so plans do not depend on
/// the machine. Two full passes over 32 micro-batches.
const SWAP_BUDGET: usize = 1_000;

/// A replica's ordered micro-batches, and their simulated time.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// The ids of each micro-batch's sequences, in running order.
    pub micro_batches: Vec<Vec<usize>>,
    /// The 1F1B makespan.
    pub ms: Millis,
}

/// Packs sets of one batch's sequences under one scheme.
#[derive(Clone, Debug)]
pub struct Packer<'a> {
    cost: &'a SchemeCost,
    tokens: &'a [Tokens],
    ms: Vec<Millis>,
    buffers: MakespanBuffers,
    used: Vec<Tokens>,
}

impl<'a> Packer<'a> {
    /// A packer of `batch` under the scheme of `cost`.
    pub fn new(cost: &'a SchemeCost, batch: &'a Batch) -> Packer<'a> {
        let ms = batch.tokens().iter().map(|&tokens| cost.sequence_ms(tokens)).collect();
        Packer { cost, tokens: batch.tokens(), ms, buffers: MakespanBuffers::default(), used: Vec::new() }
    }

    /// The scheme's cost.
    pub fn cost(&self) -> &'a SchemeCost {
        self.cost
    }

    /// What each sequence of the batch adds to its micro-batch.
    pub fn sequence_ms(&self) -> &[Millis] {
        &self.ms
    }

    /// The time of these sequences on one replica, unpolished; `ids` come longest first, each within the cap.
    pub fn time(&mut self, ids: &[usize]) -> Millis {
        if self.cost.scheme().pp() > 1 {
            return self.pack_pipeline(ids).ms;
        }
        let bins = first_fit_count(ids, self.tokens, self.cost.cap(), &mut self.used);
        let times = ids.iter().map(|&id| self.ms[id]).sum::<Millis>() + self.cost.fixed_ms() * count(bins);
        times * self.cost.stage_multipliers()[0]
    }

    /// The packing of these sequences, its order polished by swaps; `ids` as for [`Packer::time`].
    pub fn pack(&mut self, ids: &[usize]) -> Packing {
        if self.cost.scheme().pp() == 1 {
            let micro_batches = first_fit(ids, self.tokens, self.cost.cap());
            let times = self.times(&micro_batches);
            return Packing { micro_batches, ms: self.makespan(&times) };
        }
        let packing = self.pack_pipeline(ids);
        let times = self.times(&packing.micro_batches);
        let mut order: Vec<usize> = (0..times.len()).collect();
        let mut ordered = times.clone();
        let ms = swap_pairs(&mut order, SWAP_BUDGET, |order| {
            ordered.clear();
            ordered.extend(order.iter().map(|&index| times[index]));
            self.makespan(&ordered)
        });
        Packing { micro_batches: order.into_iter().map(|index| packing.micro_batches[index].clone()).collect(), ms }
    }

    /// A rough time of a replica with these totals, without packing; what dispatch compares replicas by.
    pub fn estimate(&self, load: Millis, tokens: Tokens, longest: Millis) -> Millis {
        let fixed = self.cost.fixed_ms();
        let fewest = tokens.div_ceil(self.cost.cap()).max(1);
        let bins = count(fewest).max(self.best_count(load));
        let fill = (load * (1.0 / bins) + fixed).max(longest + fixed) * count(self.cost.scheme().stages() - 1);
        load + fixed * bins + fill
    }

    /// The micro-batch count that balances the fixed costs `v c` against the pipeline's fill `(p - 1) W / v`.
    fn best_count(&self, load: Millis) -> f64 {
        let fill = load.0 * count(self.cost.scheme().stages() - 1);
        (fill / self.cost.fixed_ms().0.max(1e-3)).sqrt()
    }

    /// Tries counts on a grid, then those beside the best.
    fn pack_pipeline(&mut self, ids: &[usize]) -> Packing {
        let fewest = first_fit_count(ids, self.tokens, self.cost.cap(), &mut self.used);
        let load = ids.iter().map(|&id| self.ms[id]).sum();
        let useful = usize::try_from(whole(2.0 * self.best_count(load))).unwrap_or(usize::MAX);
        let most = ids.len().min(fewest.max(useful) + self.cost.scheme().stages());
        let micro_batches = first_fit(ids, self.tokens, self.cost.cap());
        let mut best = self.ordered(micro_batches);
        let mut tried = fewest;
        while tried <= most {
            self.keep_better(&mut best, ids, tried);
            tried = (tried + 1).max(tried + tried / 4);
        }
        let around = best.micro_batches.len();
        for count in around.saturating_sub(2).max(fewest)..=(around + 2).min(most) {
            self.keep_better(&mut best, ids, count);
        }
        best
    }

    fn keep_better(&mut self, best: &mut Packing, ids: &[usize], count: usize) {
        if let Some(bins) = balanced(ids, self.tokens, &self.ms, self.cost.cap(), count) {
            let packing = self.ordered(bins);
            if packing.ms < best.ms {
                *best = packing;
            }
        }
    }

    /// The bins in the order small at both ends, with their time.
    fn ordered(&mut self, bins: Vec<Vec<usize>>) -> Packing {
        let times = self.times(&bins);
        let order = small_at_both_ends(&times);
        let times: Vec<Millis> = order.iter().map(|&index| times[index]).collect();
        let ms = self.makespan(&times);
        let mut bins: Vec<Option<Vec<usize>>> = bins.into_iter().map(Some).collect();
        Packing { micro_batches: order.into_iter().filter_map(|index| bins[index].take()).collect(), ms }
    }

    fn times(&self, bins: &[Vec<usize>]) -> Vec<Millis> {
        let time = |bin: &Vec<usize>| bin.iter().map(|&id| self.ms[id]).sum::<Millis>() + self.cost.fixed_ms();
        bins.iter().map(time).collect()
    }

    fn makespan(&mut self, times: &[Millis]) -> Millis {
        makespan(times, self.cost.stage_multipliers(), self.cost.forward_share(), &mut self.buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{CostModel, preset};
    use crate::spec::Cluster;

    fn pack(scheme: &str, lengths: &[i64]) -> (Packing, Millis, Tokens) {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let cost = model.scheme(scheme.parse().unwrap()).unwrap();
        let batch = Batch::new(lengths, None).unwrap();
        let mut ids: Vec<usize> = (0..lengths.len()).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(lengths[id]));
        let mut packer = Packer::new(cost, &batch);
        (packer.pack(&ids), packer.time(&ids), cost.cap())
    }

    #[test]
    fn without_a_pipeline_time_is_the_sum_and_bins_are_few() {
        let (packing, time, _) = pack("<tp4>", &[7_000, 800, 3_000, 4_000, 500]);
        assert_eq!(packing.micro_batches.len(), 2);
        assert!(packing.ms.is_close(time));
    }

    #[test]
    fn a_pipeline_takes_more_micro_batches_than_memory_asks() {
        let lengths = [1_000; 40];
        let (packing, time, cap) = pack("<tp4,pp4>", &lengths);
        assert!(packing.micro_batches.len() > Tokens(40_000).div_ceil(cap));
        assert!(packing.ms <= time);
    }

    #[test]
    fn nothing_takes_no_time() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let batch = Batch::new(&[5], None).unwrap();
        for scheme in ["<tp4>", "<tp4,pp2>"] {
            let mut packer = Packer::new(model.scheme(scheme.parse().unwrap()).unwrap(), &batch);
            assert_eq!(packer.pack(&[]), Packing { micro_batches: Vec::new(), ms: Millis::ZERO });
        }
    }
}
