//! Chooses the number of micro-batches, their sequences and their order.

use std::borrow::Cow;
use std::sync::Arc;

use crate::batch::Batch;
use crate::capacity::ClassCapacity;
use crate::construct::pack::bins::{Bins, first_fit_count};
use crate::construct::pack::order::{OrderBuffers, in_shape, swap_pairs};
use crate::cost::ClassCost;
use crate::pipeline::{MakespanBuffers, makespan};
use crate::spec::PackingBudget;
use crate::timing::Exposure;
use crate::units::{Millis, Tokens, count};

/// A replica's ordered micro-batches, and their simulated time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Packing {
    /// The ids of each micro-batch's sequences, in running order.
    pub micro_batches: Vec<Vec<usize>>,
    /// The 1F1B makespan.
    pub ms: Millis,
}

/// A candidate packing, without lists of sequences.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    pub(super) bins: Bins,
    /// The non-empty micro-batches, in running order.
    order: Vec<usize>,
    ms: Millis,
}

/// Buffers reused between packings, so that a search allocates nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    best: Trial,
    pub(super) next: Trial,
    times: Vec<Millis>,
    spaced: Vec<Millis>,
    order: OrderBuffers,
    makespan: MakespanBuffers,
    used: Vec<Tokens>,
}

/// Packs sets of one batch's sequences under one class.
#[derive(Clone, Debug)]
pub struct Packer<'a> {
    pub(super) capacity: &'a ClassCapacity,
    pub(super) cost: &'a ClassCost,
    pub(super) tokens: &'a [Tokens],
    /// Shared by the packer's copies.
    pub(super) ms: Arc<[Millis]>,
    pub(super) buffers: Buffers,
    /// Time by which a replica ends later than any packing of it.
    delay: Millis,
    /// Transfers of a class without a pipeline, whose exposed time a packing decides; none if they do not count.
    pub(crate) exposure: Option<Arc<Exposure>>,
    pub(super) budget: PackingBudget,
}

impl<'a> Packer<'a> {
    /// A packer of `batch` under the class of `capacity`.
    pub fn new(capacity: &'a ClassCapacity, batch: &'a Batch, budget: PackingBudget) -> Packer<'a> {
        let cost = capacity.cost();
        let ms = batch.tokens().iter().map(|&tokens| cost.sequence_ms(tokens)).collect();
        let (tokens, buffers) = (batch.tokens(), Buffers::default());
        Packer { capacity, cost, tokens, ms, buffers, delay: Millis::ZERO, exposure: None, budget }
    }

    /// The same packer, for replicas that end later than their packings by `delay`.
    #[must_use]
    pub fn delayed(self, delay: Millis) -> Packer<'a> {
        Packer { delay, ..self }
    }

    /// The same packer, for replicas that wait for these transfers as far as their packings do not overlap them.
    #[must_use]
    pub fn exposed(self, exposure: Option<Arc<Exposure>>) -> Packer<'a> {
        Packer { exposure, ..self }
    }

    /// The class's cost.
    pub fn cost(&self) -> &'a ClassCost {
        self.cost
    }

    /// The time that each sequence of the batch adds to its micro-batch.
    pub fn sequence_ms(&self) -> &[Millis] {
        &self.ms
    }

    /// The end of a replica with these sequences in an unrefined packing; `ids` come longest first, each admitted.
    pub fn time(&mut self, ids: &[usize]) -> Millis {
        if ids.is_empty() { Millis::ZERO } else { self.delay + self.packed_ms(ids) + self.exposed_ms(ids) }
    }

    fn packed_ms(&mut self, ids: &[usize]) -> Millis {
        if self.cost.scheme().pp() > 1 {
            return self.fill_best(ids).ms;
        }
        let times = if self.cost.has_least() {
            self.fill_flat(ids)
        } else {
            let bins = self.fewest(ids);
            ids.iter().map(|&id| self.ms[id]).sum::<Millis>() + self.cost.fixed_ms() * count(bins)
        };
        times * self.cost.stage_multipliers()[0]
    }

    /// Fills the fewest micro-batches of a scheme without a pipeline, and returns the sum of their times.
    ///
    /// First-fit fills all but the last ones. Where these take the least time, even micro-batches waste less of it.
    fn fill_flat(&mut self, ids: &[usize]) -> Millis {
        let bins = &mut self.buffers.next.bins;
        bins.first_fit(ids, self.tokens, &self.ms, self.cost.cap());
        let (times, number) = (self.filled_ms(), self.buffers.next.bins.times().len());
        let least = self.cost.least_ms() - self.cost.fixed_ms();
        let is_short = self.buffers.next.bins.times().iter().any(|&time| time < least);
        if number < 2 || !is_short {
            return times;
        }
        let even = std::iter::repeat_n(Millis::ZERO, number);
        if self.buffers.next.bins.towards(ids, self.tokens, &self.ms, self.cost.cap(), even) {
            let evened = self.filled_ms();
            if evened < times {
                return evened;
            }
        }
        self.buffers.next.bins.first_fit(ids, self.tokens, &self.ms, self.cost.cap());
        times
    }

    /// The sum of the times of the micro-batches just filled.
    fn filled_ms(&self) -> Millis {
        self.buffers.next.bins.times().iter().map(|&time| self.cost.ms_of_work(time)).sum()
    }

    /// The number of micro-batches of first-fit decreasing; `ids` as for [`Packer::time`].
    pub(crate) fn fewest(&mut self, ids: &[usize]) -> usize {
        first_fit_count(ids, self.tokens, self.cost.cap(), &mut self.buffers.used)
    }

    /// The number of micro-batches of first-fit decreasing if each may hold the whole in-flight limit.
    fn fewest_sharing(&mut self, ids: &[usize]) -> usize {
        first_fit_count(ids, self.tokens, self.cost.longest(), &mut self.buffers.used)
    }

    /// The packing of these sequences, its order refined; `ids` as for [`Packer::time`].
    pub fn pack(&mut self, ids: &[usize]) -> Packing {
        let draft = self.draft(ids);
        self.refined(draft)
    }

    /// The packing whose time [`Packer::time`] gives.
    pub fn draft(&mut self, ids: &[usize]) -> Packing {
        if ids.is_empty() {
            return Packing::default();
        }
        if self.cost.scheme().pp() > 1 {
            let Trial { bins, order, ms } = self.fill_best(ids);
            let (lists, ms) = (bins.lists(ids), *ms);
            let (order, totals) = (order.clone(), bins.totals().to_vec());
            return Packing { micro_batches: self.placed(lists, &order, &totals), ms };
        }
        self.fill_flat(ids);
        let micro_batches = self.buffers.next.bins.lists(ids);
        let times = self.times(&micro_batches);
        Packing { micro_batches, ms: self.makespan(&times) }
    }

    /// A packing of this class with pairs of its micro-batches swapped while that shortens it; without a pipeline all
    /// orders take equally long.
    pub fn refined(&mut self, packing: Packing) -> Packing {
        if self.cost.scheme().pp() == 1 {
            return packing;
        }
        let bins: Vec<Vec<usize>> = packing.micro_batches.into_iter().filter(|bin| !bin.is_empty()).collect();
        let (times, totals) = (self.times(&bins), self.totals(&bins));
        let mut order: Vec<usize> = (0..times.len()).collect();
        let mut ordered = Vec::with_capacity(times.len());
        let ms = swap_pairs(&mut order, self.budget.swaps, |order| {
            ordered.clear();
            self.fill_spaced(order, &totals, &times, &mut ordered);
            self.makespan(&ordered)
        });
        Packing { micro_batches: self.placed(bins, &order, &totals), ms }
    }

    /// A rough time of a replica with these totals, without packing, by which dispatch compares replicas.
    pub fn estimate(&self, load: Millis, tokens: Tokens, longest: Millis) -> Millis {
        let best = self.capacity.estimate(load, tokens);
        let beyond = Millis((self.cost.ms_of_work(longest) - best.longest).0.max(0.0));
        let stall = beyond * (self.budget.stall * count(self.cost.scheme().stages() - 1));
        self.delay + best.end + stall + self.estimated_exposure(load, tokens)
    }

    /// The least by which work of this time raises [`Packer::estimate`] for a slowest stage of multiplier 1: nothing if it
    /// may fit into the least time of a micro-batch, or overlap transfers.
    pub fn least_added(&self, work: Millis) -> Millis {
        if self.cost.has_least() || self.exposure.is_some() { work.min(Millis::ZERO) } else { work }
    }

    /// The end of a replica without a pipeline with these totals as if no micro-batch took the least time.
    pub(crate) fn end_of_work(&self, load: Millis, tokens: Tokens) -> Option<Millis> {
        let [multiplier] = self.cost.stage_multipliers() else { return None };
        let fewest = tokens.div_ceil(self.cost.cap());
        Some(self.delay + (load + self.cost.fixed_ms() * count(fewest)) * *multiplier)
    }

    /// Fills the number of micro-batches that would be best if sequences could be divided, and the neighbouring
    /// numbers; returns the best.
    ///
    /// If the longest sequence takes longer than the longest of those micro-batches, a few long micro-batches around it are
    /// tried too.
    fn fill_best(&mut self, ids: &[usize]) -> &Trial {
        self.buffers.best.ms = Millis::INFINITY;
        let fewest = self.fewest(ids);
        let load = ids.iter().map(|&id| self.ms[id]).sum();
        let middle = self.capacity.best_count(load, fewest).min(ids.len());
        if !self.fill(ids, load, middle) {
            self.buffers.next.bins.first_fit(ids, self.tokens, &self.ms, self.cost.cap());
            let capacity = self.capacity;
            self.keep_better(|count| capacity.shape(count, load));
        }
        let PackingBudget { counts, spacing, .. } = self.budget;
        let is_shared = self.cost.longest() > self.cost.cap();
        let least = if is_shared { self.fewest_sharing(ids).min(fewest) } else { fewest };
        let fewer = (least..middle).rev().take(counts);
        let more = (middle..=ids.len()).step_by((middle / spacing).max(1)).skip(1).take(counts);
        for count in fewer.chain(more) {
            self.fill(ids, load, count);
        }
        self.fill_around_longest(ids, load, fewest, middle);
        &self.buffers.best
    }

    /// Fills `count` micro-batches whose times rise and fall as the pipeline fills best, or are all equal, which is
    /// better if a few long sequences leave no choice. Returns whether all sequences found room.
    fn fill(&mut self, ids: &[usize], load: Millis, count: usize) -> bool {
        let (cap, longest) = (self.cost.cap(), self.cost.longest());
        let is_within_cap = self.fill_within(ids, load, count, cap);
        // If consecutive micro-batches share an in-flight limit, one of them may use the room that others leave.
        let is_shared = longest > cap && self.fill_within(ids, load, count, longest);
        is_within_cap || is_shared
    }

    /// The same, with at most `cap` tokens in each micro-batch of more than one sequence.
    fn fill_within(&mut self, ids: &[usize], load: Millis, count: usize, cap: Tokens) -> bool {
        let (end, fixed) = (self.capacity.end(count, load), self.cost.fixed_ms());
        let shape = self.capacity.shape(count, load);
        let is_shaped = self.fill_towards(ids, load, cap, shape.iter().map(|&share| end * share - fixed));
        let is_even = self.fill_towards(ids, load, cap, std::iter::repeat_n(Millis::ZERO, count));
        is_shaped || is_even
    }

    fn fill_towards(
        &mut self,
        ids: &[usize],
        load: Millis,
        cap: Tokens,
        targets: impl Iterator<Item = Millis>,
    ) -> bool {
        let is_filled = self.buffers.next.bins.towards(ids, self.tokens, &self.ms, cap, targets);
        if is_filled {
            let capacity = self.capacity;
            self.keep_better(|count| capacity.shape(count, load));
        }
        is_filled
    }

    /// Orders the bins just filled by the shape of their number, as far as memory allows it, and keeps them if they are the
    /// best.
    pub(super) fn keep_better(&mut self, shape: impl Fn(usize) -> Cow<'a, [f64]>) {
        let Buffers { next: Trial { bins, order, .. }, times, order: buffers, .. } = &mut self.buffers;
        // The least targets may find no sequence short enough.
        let is_used = |bin: &usize| bins.totals()[*bin] > Tokens(0);
        let used = || (0..bins.totals().len()).filter(is_used);
        times.clear();
        times.extend(used().map(|bin| self.cost.ms_of_work(bins.times()[bin])));
        in_shape(times, &shape(times.len()), buffers, order);
        if times.len() < bins.totals().len() {
            let used: Vec<usize> = used().collect();
            for place in order.iter_mut() {
                *place = used[*place];
            }
        }
        let ms = self.ordered_ms();
        self.buffers.next.ms = ms;
        if ms < self.buffers.best.ms {
            std::mem::swap(&mut self.buffers.best, &mut self.buffers.next);
        }
    }

    /// The time of the bins just ordered.
    fn ordered_ms(&mut self) -> Millis {
        let mut spaced = std::mem::take(&mut self.buffers.spaced);
        let Trial { bins, order, .. } = &self.buffers.next;
        let work = |place: Option<usize>| place.map_or(Millis::ZERO, |bin| bins.times()[bin]);
        spaced.clear();
        spaced.extend(self.spaced(order, bins.totals()).map(|place| self.cost.ms_of_work(work(place))));
        let ms = self.makespan(&spaced);
        self.buffers.spaced = spaced;
        ms
    }

    /// The times in this order, with those of the empty micro-batches that the in-flight limit needs in between.
    fn fill_spaced(&self, order: &[usize], totals: &[Tokens], times: &[Millis], spaced: &mut Vec<Millis>) {
        let empty = self.cost.ms_of_work(Millis::ZERO);
        spaced.extend(self.spaced(order, totals).map(|place| place.map_or(empty, |index| times[index])));
    }

    /// The bins in this order, with the empty micro-batches that the in-flight limit needs in between.
    fn placed(&self, mut bins: Vec<Vec<usize>>, order: &[usize], totals: &[Tokens]) -> Vec<Vec<usize>> {
        let taken = |place: Option<usize>| place.map(|index| std::mem::take(&mut bins[index])).unwrap_or_default();
        self.spaced(order, totals).map(taken).collect()
    }

    fn spaced<'b>(&self, order: &'b [usize], totals: &[Tokens]) -> impl Iterator<Item = Option<usize>> + use<'b> {
        let is_spaced = totals.iter().any(|&tokens| tokens > self.cost.cap());
        let ordered = || order.iter().map(|&index| totals[index]).collect::<Vec<_>>();
        let places = is_spaced.then(|| self.cost.in_flight_limit().spaced(&ordered()));
        // Micro-batches within the cap fit in any order.
        let count = places.as_ref().map_or(order.len(), Vec::len);
        (0..count).map(move |at| match &places {
            Some(places) => places[at].map(|place| order[place]),
            None => Some(order[at]),
        })
    }

    pub(super) fn totals(&self, bins: &[Vec<usize>]) -> Vec<Tokens> {
        bins.iter().map(|bin| bin.iter().map(|&id| self.tokens[id]).sum()).collect()
    }

    pub(super) fn times(&self, bins: &[Vec<usize>]) -> Vec<Millis> {
        let time = |bin: &Vec<usize>| self.cost.ms_of_work(bin.iter().map(|&id| self.ms[id]).sum());
        bins.iter().map(time).collect()
    }

    pub(super) fn makespan(&mut self, times: &[Millis]) -> Millis {
        makespan(times, self.cost.stage_multipliers(), self.cost.forward_share(), &mut self.buffers.makespan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Capacities;
    use crate::cost::{CostModel, preset};
    use crate::spec::CapacityBudget;
    use crate::spec::{Cluster, MemoryRule};

    fn pack(scheme: &str, lengths: &[i64]) -> (Packing, Millis, Tokens) {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(model, CapacityBudget::ONLINE);
        let capacity = capacities.scheme(scheme.parse().unwrap()).unwrap();
        let batch = Batch::new(lengths, None).unwrap();
        let mut ids: Vec<usize> = (0..lengths.len()).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(lengths[id]));
        let mut packer = Packer::new(capacity, &batch, PackingBudget::ONLINE);
        (packer.pack(&ids), packer.time(&ids), capacity.cost().cap())
    }

    #[test]
    fn without_a_pipeline_time_is_the_sum_and_bins_are_few() {
        let (packing, time, _) = pack("<tp4>", &[7_000, 800, 3_000, 4_000, 500]);
        assert_eq!(packing.micro_batches.len(), 2);
        assert!(packing.ms.is_close(time));
    }

    #[test]
    fn micro_batches_that_would_take_the_least_time_are_evened() {
        let mut profile = preset("llama-32b-a800").unwrap();
        profile.schemes.iter_mut().for_each(|entry| entry.least_ms = 400.0);
        let model = CostModel::new(profile, Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(model, CapacityBudget::ONLINE);
        let capacity = capacities.scheme("<tp4>".parse().unwrap()).unwrap();
        let packed = |lengths: &[i64]| {
            let batch = Batch::new(lengths, None).unwrap();
            let ids: Vec<usize> = (0..lengths.len()).collect();
            let mut packer = Packer::new(capacity, &batch, PackingBudget::ONLINE);
            let (packing, time) = (packer.pack(&ids), packer.time(&ids));
            assert!(packing.ms.is_close(time));
            (packing.micro_batches, packer.times(&[vec![0], vec![ids.len() - 1]]))
        };
        // <tp4> holds 7,808 tokens. First-fit would leave the shortest alone, which takes the least time.
        let (micro_batches, alone) = packed(&[4_000, 3_800, 26]);
        assert!(alone[0] > Millis(400.0) && alone[1] == Millis(400.0), "{alone:?}");
        assert_eq!(micro_batches, [vec![0], vec![1, 2]]);
        // All micro-batches of first-fit take longer: it is kept, though it is less even.
        let (micro_batches, _) = packed(&[4_000, 3_800, 3_000, 3_000]);
        assert_eq!(micro_batches, [[0, 1], [2, 3]]);
    }

    #[test]
    fn a_pipeline_takes_more_micro_batches_than_memory_requires() {
        let lengths = [1_000; 40];
        let (packing, time, cap) = pack("<tp4,pp4>", &lengths);
        assert!(packing.micro_batches.len() > Tokens(40_000).div_ceil(cap));
        assert!(packing.ms <= time);
    }

    #[test]
    fn no_sequences_take_no_time() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(model, CapacityBudget::ONLINE);
        let batch = Batch::new(&[5], None).unwrap();
        for scheme in ["<tp4>", "<tp4,pp2>"] {
            let mut packer =
                Packer::new(capacities.scheme(scheme.parse().unwrap()).unwrap(), &batch, PackingBudget::ONLINE);
            assert_eq!(packer.pack(&[]), Packing { micro_batches: Vec::new(), ms: Millis::ZERO });
        }
    }

    #[test]
    fn a_draft_has_its_stated_time_and_refinement_never_lengthens_it() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let capacities = Capacities::new(model.with_memory(MemoryRule::InFlight), CapacityBudget::ONLINE);
        let lengths: Vec<i64> = (0..50).map(|i| 9_000 / (1 + i % 17) + i).collect();
        let batch = Batch::new(&lengths, None).unwrap();
        let mut ids: Vec<usize> = (0..lengths.len()).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(lengths[id]));
        for scheme in ["<tp4>", "<tp4,pp2>", "<tp8,pp4>"] {
            let mut packer =
                Packer::new(capacities.scheme(scheme.parse().unwrap()).unwrap(), &batch, PackingBudget::ONLINE);
            // The buffers' contents after one packing do not change the next.
            for count in [50, 7, 50] {
                let draft = packer.draft(&ids[..count]);
                let mut packed = draft.micro_batches.concat();
                packed.sort_unstable_by_key(|&id| std::cmp::Reverse(lengths[id]));
                assert_eq!(packed, ids[..count], "{scheme}");
                assert!(draft.ms.is_close(packer.time(&ids[..count])), "{scheme}");
                assert_eq!(draft, packer.clone().draft(&ids[..count]), "{scheme}");
                assert!(packer.refined(draft.clone()).ms <= draft.ms, "{scheme}");
            }
        }
    }

    #[test]
    fn estimates_are_near_packed_times() {
        let model = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(16_384, 8).unwrap());
        let capacities = Capacities::new(model, CapacityBudget::ONLINE);
        // Many sequences of similar length; then a few long ones that stall the other stages.
        let many: Vec<i64> = (0..40).map(|i| 4_000 - 97 * i).collect();
        let cases = [("<tp2,pp2>", many, 0.02), ("<tp4,pp2>", vec![13_000, 10_000, 9_000, 4_000, 900], 0.1)];
        for (scheme, lengths, tolerance) in cases {
            let batch = Batch::new(&lengths, None).unwrap();
            let mut packer =
                Packer::new(capacities.scheme(scheme.parse().unwrap()).unwrap(), &batch, PackingBudget::ONLINE);
            let load: Millis = packer.sequence_ms().iter().copied().sum();
            let estimate = packer.estimate(load, batch.total_tokens(), packer.sequence_ms()[0]);
            let time = packer.time(&(0..lengths.len()).collect::<Vec<_>>());
            assert!((estimate.0 / time.0 - 1.0).abs() < tolerance, "{scheme}: {estimate:?} {time:?}");
        }
    }
}
