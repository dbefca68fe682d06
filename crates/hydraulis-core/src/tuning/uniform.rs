//! One scheme for all replicas, for batches of sequences of one length.

use crate::cancellation::Cancellation;
use crate::cost::{ClassCost, CostModel};
use crate::error::Result;
use crate::pipeline::{MakespanBuffers, makespan};
use crate::spec::Scheme;
use crate::units::{Millis, Tokens, count};

/// Number of splits after which a caller's cancellation is heard.
const SPLITS_BETWEEN_CHECKS: u64 = 1 << 16;

/// The fastest micro-batches of equal replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct UniformPlan {
    /// Scheme of every replica.
    pub scheme: Scheme,
    /// Number of replicas, as many as the cluster has ranks for.
    pub replicas: u64,
    /// Sequences of each micro-batch of the replica with the most sequences, 0 for an empty one between two that do not
    /// fit together.
    pub micro_batches: Vec<u64>,
    /// Time of that replica.
    pub iteration_ms: Millis,
}

/// The fastest plan of each scheme that admits `length`, for a batch of `batch` sequences of that length; the fastest
/// scheme comes first.
///
/// Replicas get equal numbers of sequences, or one more, and split them evenly over their micro-batches. Of all numbers
/// of micro-batches that memory allows the fastest is taken: more of them fill a pipeline better, fewer have less fixed
/// time. The cluster's best ranks stand for all.
pub fn uniform_plans(
    costs: &CostModel,
    length: Tokens,
    batch: u64,
    cancellation: Cancellation<'_>,
) -> Result<Vec<UniformPlan>> {
    let gpus = u64::from(costs.cluster().gpus());
    let fitting = costs.best().iter().filter(|cost| cost.scheme().ranks() <= gpus && cost.admits(length));
    let plans = fitting.map(|cost| {
        let replicas = gpus / cost.scheme().ranks();
        let (iteration_ms, micro_batches) = fastest(cost, length, batch.div_ceil(replicas), cancellation)?;
        Ok(UniformPlan { scheme: cost.scheme(), replicas, micro_batches, iteration_ms })
    });
    let mut plans: Vec<UniformPlan> = plans.collect::<Result<_>>()?;
    plans.sort_by_key(|plan| (plan.iteration_ms, plan.scheme));
    Ok(plans)
}

/// The fastest micro-batches of one replica for these sequences, which it admits one at a time.
fn fastest(
    cost: &ClassCost,
    length: Tokens,
    sequences: u64,
    cancellation: Cancellation<'_>,
) -> Result<(Millis, Vec<u64>)> {
    let one = cost.sequence_ms(length);
    // Called with each split that fits and its bound.
    let each_fitting = |visit: &mut dyn FnMut(Millis, Split)| {
        for split in (1..=sequences).map(|micro_batches| Split { sequences, micro_batches }) {
            if split.micro_batches.is_multiple_of(SPLITS_BETWEEN_CHECKS) {
                cancellation()?;
            }
            if split.fits(cost, length) {
                visit(split.bound(cost, one), split);
            }
        }
        cancellation()
    };
    let mut promising: Option<(Millis, Split)> = None;
    each_fitting(&mut |bound, split| {
        if promising.is_none_or(|(least, _)| bound < least) {
            promising = Some((bound, split));
        }
    })?;
    let mut buffers = MakespanBuffers::default();
    let mut time = |micro_batches: &[u64]| {
        let times: Vec<Millis> = micro_batches.iter().map(|&own| cost.ms_of_work(one * count(own))).collect();
        makespan(&times, cost.stage_multipliers(), cost.forward_share(), &mut buffers)
    };
    let Some((_, promising)) = promising else {
        let alone = vec![length; usize::try_from(sequences).unwrap_or(usize::MAX)];
        let places = cost.in_flight_limit().spaced(&alone);
        let micro_batches: Vec<u64> = places.into_iter().map(|place| u64::from(place.is_some())).collect();
        return Ok((time(&micro_batches), micro_batches));
    };
    let micro_batches: Vec<u64> = promising.each().collect();
    let mut best = (time(&micro_batches), micro_batches);
    let mut candidates: Vec<(Millis, Split)> = Vec::new();
    each_fitting(&mut |bound, split| {
        if bound < best.0 && split.micro_batches != promising.micro_batches {
            candidates.push((bound, split));
        }
    })?;
    candidates.sort_by_key(|(bound, split)| (*bound, split.micro_batches));
    for (bound, split) in candidates {
        cancellation()?;
        if bound >= best.0 {
            break;
        }
        let micro_batches: Vec<u64> = split.each().collect();
        let ms = time(&micro_batches);
        if ms < best.0 {
            best = (ms, micro_batches);
        }
    }
    Ok(best)
}

/// Sequences split evenly over micro-batches, the larger ones first.
#[derive(Clone, Copy, Debug)]
struct Split {
    sequences: u64,
    micro_batches: u64,
}

impl Split {
    /// Sequences of each micro-batch.
    fn each(self) -> impl Iterator<Item = u64> {
        (0..self.micro_batches).map(move |place| self.first(place + 1) - self.first(place))
    }

    /// Sequences of the first micro-batches together.
    fn first(self, number: u64) -> u64 {
        number * (self.sequences / self.micro_batches) + number.min(self.sequences % self.micro_batches)
    }

    /// Whether any consecutive micro-batches of the in-flight limit fit together: the first ones are the largest.
    fn fits(self, cost: &ClassCost, length: Tokens) -> bool {
        let limit = cost.in_flight_limit();
        let together = self.micro_batches.min(limit.micro_batches as u64);
        self.first(together).saturating_mul(length.0) <= limit.tokens.0
    }

    /// No schedule is faster, if one sequence takes `one`: the slowest stage computes every micro-batch, and the smallest
    /// passes all other stages before its first computation or after its last.
    fn bound(self, cost: &ClassCost, one: Millis) -> Millis {
        let slowest = cost.slowest_multiplier();
        let others = cost.stage_multipliers().iter().sum::<f64>() - slowest;
        let number = count(self.micro_batches);
        let all = (one * count(self.sequences) + cost.fixed_ms() * number).max(cost.least_ms() * number);
        let least = cost.ms_of_work(one * count(self.sequences / self.micro_batches));
        // The margin covers the rounding of sums in another order.
        (all * slowest + least * others) * (1.0 - 1e-12)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cancellation::NEVER_CANCELLED;
    use crate::cost::preset;
    use crate::error::Error;
    use crate::spec::{Cluster, MemoryRule};

    fn costs(memory: MemoryRule) -> CostModel {
        CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap()).with_memory(memory)
    }

    /// All ways to give sequences to micro-batches in turn, at least one to each, largest first.
    fn descending(sequences: u64, most: u64) -> Vec<Vec<u64>> {
        if sequences == 0 {
            return vec![Vec::new()];
        }
        let first = (1..=most.min(sequences)).rev();
        first
            .flat_map(|own| descending(sequences - own, own).into_iter().map(move |rest| [vec![own], rest].concat()))
            .collect()
    }

    proptest! {
        /// No number of micro-batches is faster than the one taken, and its micro-batches fit.
        #[test]
        fn no_even_split_of_a_replica_is_faster(
            length in 500..20_000_u64,
            batch in 1..200_u64,
            in_flight in any::<bool>(),
        ) {
            let costs = costs(if in_flight { MemoryRule::InFlight } else { MemoryRule::PerMicroBatch });
            let length = Tokens(length);
            let plans = uniform_plans(&costs, length, batch, NEVER_CANCELLED).unwrap();
            prop_assert!(plans.is_sorted_by_key(|plan| plan.iteration_ms));
            for plan in plans {
                let cost = costs.scheme(plan.scheme).unwrap();
                let sequences = batch.div_ceil(plan.replicas);
                prop_assert_eq!(plan.micro_batches.iter().sum::<u64>(), sequences);
                let window = cost.in_flight_limit();
                let held = plan.micro_batches.windows(window.micro_batches.min(plan.micro_batches.len()));
                prop_assert!(held.into_iter().all(|own| own.iter().sum::<u64>() * length.0 <= window.tokens.0));
                let time = |split: &[u64]| {
                    let times: Vec<Millis> = split.iter().map(|&own| cost.micro_batch_ms((0..own).map(|_| length))).collect();
                    makespan(&times, cost.stage_multipliers(), cost.forward_share(), &mut MakespanBuffers::default())
                };
                prop_assert!(time(&plan.micro_batches).is_close(plan.iteration_ms));
                let others = (1..=sequences).map(|micro_batches| Split { sequences, micro_batches });
                let others = others.filter(|split| split.fits(cost, length));
                let best = others.map(|split| time(&split.each().collect::<Vec<_>>())).min();
                // Where even single sequences need room between them, nothing is compared.
                let best = best.unwrap_or(plan.iteration_ms);
                prop_assert!(plan.iteration_ms.is_close(best), "{} took {:?}, {:?}", plan.scheme, plan.iteration_ms, best);
            }
        }
    }

    /// Without a pipeline no split of any sizes beats the even one with the fewest micro-batches.
    #[test]
    fn without_a_pipeline_the_fewest_micro_batches_are_fastest() {
        let costs = costs(MemoryRule::PerMicroBatch);
        let length = Tokens(5_000);
        let plans = uniform_plans(&costs, length, 48, NEVER_CANCELLED).unwrap();
        let plan = plans.iter().find(|plan| plan.scheme.to_string() == "<tp8>").unwrap();
        let cost = costs.scheme(plan.scheme).unwrap();
        // Eight replicas with six sequences each; the cap of 21,888 tokens takes four of them.
        assert_eq!((plan.replicas, &plan.micro_batches[..]), (8, &[3, 3][..]));
        let time =
            |split: &[u64]| -> Millis { split.iter().map(|&own| cost.micro_batch_ms((0..own).map(|_| length))).sum() };
        let best = descending(6, 4).iter().map(|split| time(split)).min().unwrap();
        assert!(plan.iteration_ms.is_close(best));
    }

    #[test]
    fn a_length_that_no_scheme_admits_has_no_plan() {
        let costs = costs(MemoryRule::PerMicroBatch);
        assert_eq!(uniform_plans(&costs, Tokens(43_521), 8, NEVER_CANCELLED).unwrap(), []);
        assert_eq!(uniform_plans(&costs, Tokens(43_520), 8, NEVER_CANCELLED).unwrap()[0].scheme.to_string(), "<tp16>");
        assert_eq!(uniform_plans(&costs, Tokens(100), 0, NEVER_CANCELLED).unwrap()[0].iteration_ms, Millis::ZERO);
    }

    #[test]
    fn a_large_batch_can_be_cancelled() {
        let (costs, heard) = (costs(MemoryRule::PerMicroBatch), std::cell::Cell::new(0));
        let second = || {
            heard.set(heard.get() + 1);
            if heard.get() == 2 { Err(Error::Stopped) } else { Ok(()) }
        };
        assert_eq!(uniform_plans(&costs, Tokens(1_000), 20_000_000, &second), Err(Error::Stopped));
        assert_eq!(heard.get(), 2);
    }
}
