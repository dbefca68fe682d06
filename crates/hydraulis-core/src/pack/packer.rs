//! How many micro-batches, which sequences in each, and in which order.

use crate::capacity::SchemeCapacity;
use crate::cost::SchemeCost;
use crate::lengths::Batch;
use crate::pack::bins::{first_fit, first_fit_count, towards};
use crate::pack::order::{in_shape, swap_pairs};
use crate::schedule::{MakespanBuffers, makespan};
use crate::units::{Millis, Tokens, count};

/// Pair swaps tried when a pipeline's final order is polished; counted, not timed, so plans do not depend on
/// the machine. Two full passes over 32 micro-batches.
const SWAP_BUDGET: usize = 1_000;
/// Counts tried below and above the one that would be best.
const SIDE: usize = 3;

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
    capacity: &'a SchemeCapacity,
    cost: &'a SchemeCost,
    tokens: &'a [Tokens],
    ms: Vec<Millis>,
    buffers: MakespanBuffers,
    used: Vec<Tokens>,
    /// What a replica ends later than its packing, whatever that is.
    delay: Millis,
}

impl<'a> Packer<'a> {
    /// A packer of `batch` under the scheme of `capacity`.
    pub fn new(capacity: &'a SchemeCapacity, batch: &'a Batch) -> Packer<'a> {
        let cost = capacity.cost();
        let ms = batch.tokens().iter().map(|&tokens| cost.sequence_ms(tokens)).collect();
        Packer {
            capacity,
            cost,
            tokens: batch.tokens(),
            ms,
            buffers: MakespanBuffers::default(),
            used: Vec::new(),
            delay: Millis::ZERO,
        }
    }

    /// The same, of replicas that end so much later than their packings.
    #[must_use]
    pub fn delayed(self, delay: Millis) -> Packer<'a> {
        Packer { delay, ..self }
    }

    /// The scheme's cost.
    pub fn cost(&self) -> &'a SchemeCost {
        self.cost
    }

    /// What each sequence of the batch adds to its micro-batch.
    pub fn sequence_ms(&self) -> &[Millis] {
        &self.ms
    }

    /// When a replica with these sequences ends, their packing unpolished; `ids` come longest first, each admitted.
    pub fn time(&mut self, ids: &[usize]) -> Millis {
        if ids.is_empty() { Millis::ZERO } else { self.delay + self.packed_ms(ids) }
    }

    fn packed_ms(&mut self, ids: &[usize]) -> Millis {
        if self.cost.scheme().pp() > 1 {
            return self.pack_pipeline(ids).ms;
        }
        let bins = self.fewest(ids);
        let times = ids.iter().map(|&id| self.ms[id]).sum::<Millis>() + self.cost.fixed_ms() * count(bins);
        times * self.cost.stage_multipliers()[0]
    }

    /// As few micro-batches as first-fit decreasing needs; `ids` as for [`Packer::time`].
    pub(crate) fn fewest(&mut self, ids: &[usize]) -> usize {
        first_fit_count(ids, self.tokens, self.cost.cap(), &mut self.used)
    }

    /// The packing of these sequences, its order polished by swaps; `ids` as for [`Packer::time`].
    pub fn pack(&mut self, ids: &[usize]) -> Packing {
        if self.cost.scheme().pp() == 1 {
            let micro_batches = first_fit(ids, self.tokens, self.cost.cap());
            let times = self.times(&micro_batches);
            return Packing { micro_batches, ms: self.makespan(&times) };
        }
        let packing = self.pack_pipeline(ids);
        let bins: Vec<Vec<usize>> = packing.micro_batches.into_iter().filter(|bin| !bin.is_empty()).collect();
        let (times, totals) = (self.times(&bins), self.totals(&bins));
        let mut order: Vec<usize> = (0..times.len()).collect();
        let mut ordered = Vec::with_capacity(times.len());
        let ms = swap_pairs(&mut order, SWAP_BUDGET, |order| {
            ordered.clear();
            self.fill_spaced(order, &totals, &times, &mut ordered);
            self.makespan(&ordered)
        });
        Packing { micro_batches: self.placed(bins, &order, &totals), ms }
    }

    /// A rough time of a replica with these totals, without packing; what dispatch compares replicas by.
    pub fn estimate(&self, load: Millis, tokens: Tokens, longest: Millis) -> Millis {
        // A long sequence passes the stages one by one while the others wait for it.
        let fixed = self.cost.fixed_ms();
        let alone = (longest + fixed) * count(self.cost.scheme().stages() - 1);
        let (end, micro_batches) = self.capacity.estimate(load, tokens);
        self.delay + end.max(load + fixed * count(micro_batches) + alone)
    }

    /// Tries the number of micro-batches that would be best if sequences could be divided, then those beside it as
    /// long as they are better.
    fn pack_pipeline(&mut self, ids: &[usize]) -> Packing {
        if ids.is_empty() {
            return Packing { micro_batches: Vec::new(), ms: Millis::ZERO };
        }
        let fewest = self.fewest(ids);
        let load = ids.iter().map(|&id| self.ms[id]).sum();
        let middle = self.capacity.best_count(load, fewest).min(ids.len());
        let mut best = self.packed(ids, load, middle).unwrap_or_else(|| {
            let micro_batches = first_fit(ids, self.tokens, self.cost.cap());
            self.ordered(micro_batches, load)
        });
        for count in (fewest..middle).rev().take(SIDE) {
            self.keep_better(&mut best, ids, load, count);
        }
        for count in (middle + 1..=ids.len()).take(SIDE) {
            self.keep_better(&mut best, ids, load, count);
        }
        best
    }

    fn keep_better(&mut self, best: &mut Packing, ids: &[usize], load: Millis, count: usize) {
        if let Some(packing) = self.packed(ids, load, count)
            && packing.ms < best.ms
        {
            *best = packing;
        }
    }

    /// The sequences in `count` micro-batches whose times rise and fall as the pipeline fills best, or are all equal,
    /// which is better where a few long sequences leave no choice.
    fn packed(&mut self, ids: &[usize], load: Millis, count: usize) -> Option<Packing> {
        let (cap, longest) = (self.cost.cap(), self.cost.longest());
        let within_cap = self.packed_within(ids, load, count, cap);
        // Where consecutive micro-batches share their room, one of them may take what others leave.
        let shared = if longest > cap { self.packed_within(ids, load, count, longest) } else { None };
        [within_cap, shared].into_iter().flatten().min_by_key(|packing| packing.ms)
    }

    /// The same, with at most `cap` tokens in each that has more than one sequence.
    fn packed_within(&mut self, ids: &[usize], load: Millis, count: usize, cap: Tokens) -> Option<Packing> {
        let even = self.packed_towards(ids, load, cap, std::iter::repeat_n(Millis::ZERO, count));
        let (end, fixed) = (self.capacity.end(count, load), self.cost.fixed_ms());
        let Some(shape) = self.capacity.shape(count, load) else { return even };
        let shaped = self.packed_towards(ids, load, cap, shape.iter().map(|&share| end * share - fixed));
        [shaped, even].into_iter().flatten().min_by_key(|packing| packing.ms)
    }

    fn packed_towards(
        &mut self,
        ids: &[usize],
        load: Millis,
        cap: Tokens,
        targets: impl Iterator<Item = Millis>,
    ) -> Option<Packing> {
        let bins = towards(ids, self.tokens, &self.ms, cap, targets)?;
        Some(self.ordered(bins, load))
    }

    /// The bins in the order of the best shape, as far as memory allows it, with their time.
    fn ordered(&mut self, mut bins: Vec<Vec<usize>>, load: Millis) -> Packing {
        // The least targets may find no sequence short enough.
        bins.retain(|bin| !bin.is_empty());
        let times = self.times(&bins);
        let order = in_shape(&times, self.capacity.shape(bins.len(), load));
        let totals = self.totals(&bins);
        let mut spaced = Vec::with_capacity(times.len());
        self.fill_spaced(&order, &totals, &times, &mut spaced);
        let ms = self.makespan(&spaced);
        Packing { micro_batches: self.placed(bins, &order, &totals), ms }
    }

    /// The times in this order, and those of the empty micro-batches that memory needs in between.
    fn fill_spaced(&self, order: &[usize], totals: &[Tokens], times: &[Millis], spaced: &mut Vec<Millis>) {
        let fixed = self.cost.fixed_ms();
        spaced.extend(self.spaced(order, totals).map(|place| place.map_or(fixed, |index| times[index])));
    }

    /// The bins in this order, and the empty micro-batches that memory needs in between.
    fn placed(&self, mut bins: Vec<Vec<usize>>, order: &[usize], totals: &[Tokens]) -> Vec<Vec<usize>> {
        let taken = |place: Option<usize>| place.map(|index| std::mem::take(&mut bins[index])).unwrap_or_default();
        self.spaced(order, totals).map(taken).collect()
    }

    fn spaced<'b>(&self, order: &'b [usize], totals: &[Tokens]) -> impl Iterator<Item = Option<usize>> + use<'b> {
        let is_spaced = totals.iter().any(|&tokens| tokens > self.cost.cap());
        let ordered = || order.iter().map(|&index| totals[index]).collect::<Vec<_>>();
        let places = is_spaced.then(|| self.cost.window().spaced(&ordered()));
        // Micro-batches within the cap fit in any order.
        let count = places.as_ref().map_or(order.len(), Vec::len);
        (0..count).map(move |at| match &places {
            Some(places) => places[at].map(|place| order[place]),
            None => Some(order[at]),
        })
    }

    fn totals(&self, bins: &[Vec<usize>]) -> Vec<Tokens> {
        bins.iter().map(|bin| bin.iter().map(|&id| self.tokens[id]).sum()).collect()
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
    use crate::capacity::Capacities;
    use crate::cost::{CostModel, preset};
    use crate::spec::Cluster;

    fn pack(scheme: &str, lengths: &[i64]) -> (Packing, Millis, Tokens) {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(model);
        let capacity = capacities.scheme(scheme.parse().unwrap()).unwrap();
        let batch = Batch::new(lengths, None).unwrap();
        let mut ids: Vec<usize> = (0..lengths.len()).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(lengths[id]));
        let mut packer = Packer::new(capacity, &batch);
        (packer.pack(&ids), packer.time(&ids), capacity.cost().cap())
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
        let capacities = Capacities::new(model);
        let batch = Batch::new(&[5], None).unwrap();
        for scheme in ["<tp4>", "<tp4,pp2>"] {
            let mut packer = Packer::new(capacities.scheme(scheme.parse().unwrap()).unwrap(), &batch);
            assert_eq!(packer.pack(&[]), Packing { micro_batches: Vec::new(), ms: Millis::ZERO });
        }
    }
}
