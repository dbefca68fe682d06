//! Most time of a pipeline's micro-batches if some of them have long sequences.
//!
//! Let micro-batches `m` and `n`, in this order, take `x` and `y` on a stage of multiplier 1, and let 1F1B run them on
//! `p` stages of multipliers `k`, with the sum `K`. The forward of `m` passes all stages; then the last stage computes its
//! backward, all micro-batches up to `n`, and the forward of `n`; then the backward of `n` passes all stages. Before, the
//! first stage computes the forwards of all earlier micro-batches and the backwards of all but the last `p - 1` of
//! these, and after, the backwards of all later ones and the forwards of all but the first `p - 1`. With the forward
//! share `f`, the pipeline ends no earlier than the sum of
//!
//! - `(f K + (1 - f) k_p) x + (f k_p + (1 - f) K) y`, or `K x` if `m` is `n`,
//! - `f k_1` times the `p - 1` micro-batches before `m`, and `(1 - f) k_1` times the `p - 1` after `n`,
//! - the lesser of `k_1` and `k_p` times each other one.
//!
//! A micro-batch just before `m` is itself the start of such a path, and one just after `n` its end, so they are
//! limited, too. Sequences that share a micro-batch make it longer than separate ones would be, so the longest
//! sequences of a pattern may count as micro-batches, and the two shortest of these as the first and the last.

use crate::bound::long::replica::ROUNDING;
use crate::cost::ClassCost;
use crate::units::{Millis, count};

/// The weights of times on such a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stages {
    end: f64,
    fixed: f64,
    /// Sum of the multipliers.
    through: f64,
    /// Multiplier of the last stage.
    last: f64,
    /// Weights of the micro-batches just before and just after the long ones, the lesser first.
    near: [f64; 2],
    /// What the first and the last of the long micro-batches weigh beyond those between them, the lesser first.
    ends: [f64; 2],
    /// Number of micro-batches just before the long ones, and just after.
    neighbours: f64,
    /// Least weight of all others.
    others: f64,
}

impl Stages {
    /// The stages of a pipeline that ends by `end`; none for a single stage.
    pub(super) fn new(cost: &ClassCost, end: Millis) -> Option<Stages> {
        let (multipliers, forward) = (cost.stage_multipliers(), cost.forward_share());
        let (&[first, .., last], through) = (multipliers, multipliers.iter().sum::<f64>()) else { return None };
        let mut passes = [forward, 1.0 - forward];
        passes.sort_by(f64::total_cmp);
        Some(Stages {
            // The margin keeps patterns that just end in time.
            end: end.0 * (1.0 + ROUNDING),
            fixed: cost.fixed_ms().0,
            through,
            last,
            near: passes.map(|pass| pass * first),
            ends: passes.map(|pass| pass * (through - last)),
            neighbours: count(multipliers.len() - 1),
            others: first.min(last),
        })
    }

    /// Most time of all micro-batches together, fixed costs included, if they have sequences of these works, the
    /// longest first; below 0 if these alone end too late.
    pub(super) fn most_time(&self, works: &[f64]) -> f64 {
        let Some(&longest) = works.first() else { return f64::INFINITY };
        let alone = longest + self.fixed;
        let (mut most, mut sum) = (self.with_others(alone, alone * self.through, alone), longest);
        for pair in works.windows(2) {
            sum += pair[1];
            let path = self.last * sum + self.ends[0] * pair[0] + self.ends[1] * pair[1];
            most = most.min(self.with_others(sum, path, pair[1]));
        }
        most
    }

    /// Most time of all micro-batches, if the long ones take `sum`, the shortest of them takes `shortest`, and they put
    /// `path` on the way through the stages.
    fn with_others(&self, sum: f64, path: f64, shortest: f64) -> f64 {
        let mut left = self.end - path;
        if left < 0.0 {
            return -1.0;
        }
        let mut time = sum;
        for (near, [own, other]) in self.near.into_iter().zip([self.ends, [self.ends[1], self.ends[0]]]) {
            // Its own path, on which the long ones weigh least.
            let longest = (self.end - self.last * sum - other * shortest).max(0.0) / (self.last + own);
            let most = (self.neighbours * longest).min(if near > 0.0 { left / near } else { f64::INFINITY });
            time += most;
            left = (left - near * most).max(0.0);
        }
        time + left / self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{CostModel, preset};
    use crate::pipeline::{MakespanBuffers, makespan};
    use crate::spec::Cluster;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_pipeline_takes_more_time_than_its_longest_sequences_allow(
            scheme in prop::sample::select(vec!["<tp4,pp2>", "<tp8,pp3>", "<tp2,pp6>"]),
            long in prop::collection::vec(300.0..3_000.0_f64, 1..4),
            short in prop::collection::vec(0.0..1_500.0_f64, 0..9),
            shared in any::<bool>(),
            order in any::<prop::sample::Index>(),
        ) {
            let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
            let cost = cost.scheme(scheme.parse().unwrap()).unwrap();
            let fixed = cost.fixed_ms().0;
            let mut works = long.clone();
            if shared && works.len() > 1 {
                let last = works.pop().unwrap();
                works[0] += last;
            }
            works.extend(short);
            let first = order.index(works.len());
            works.rotate_left(first);
            let times: Vec<Millis> = works.iter().map(|work| Millis(work + fixed)).collect();
            let (stages, forward) = (cost.stage_multipliers(), cost.forward_share());
            let end = makespan(&times, stages, forward, &mut MakespanBuffers::default());
            let mut longest = long;
            longest.sort_by(|one, other| other.total_cmp(one));
            let most = Stages::new(cost, end).unwrap().most_time(&longest);
            let all: f64 = times.iter().map(|time| time.0).sum();
            prop_assert!(all <= most * (1.0 + 1e-9), "{all} {most}");
        }
    }
}
