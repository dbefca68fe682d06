//! The choice of a few strategies that keep a set of batches shortest: a k-median problem.
//!
//! Each batch runs under the fastest of the chosen strategies, and the choice minimises the sum over the batches.
//! Strategies are added greedily. Then one of them is exchanged for another as long as an exchange shortens the sum
//! (local search with single exchanges is within a factor 5 of the optimum: Arya et al. 2004, "Local search
//! heuristics for k-median and facility location problems"). Sums begin with lower bounds, and a time is computed
//! only where the bounds alone do not rule its strategy out.

use crate::error::Result;
use crate::search::Times;
use crate::units::Millis;

/// The factor by which an exchange has to shorten the sum; rounding alone does not count as a gain.
const SHORTER: f64 = 1.0 - 1e-9;

/// The strategies that may be chosen, and the callback of the choice.
pub(super) struct Choice<'a> {
    /// Whether each strategy admits the longest sequence of all.
    pub(super) admits_longest: Vec<bool>,
    /// Callback before each strategy is bounded and before its sum is computed; its argument is the number of
    /// strategies chosen.
    pub(super) cancellation: &'a mut dyn FnMut(usize) -> Result<()>,
}

/// The sum over all batches after the addition of a strategy, and the strategy.
type Addition = Option<(Millis, usize)>;

impl Choice<'_> {
    /// Up to `count` strategies, of which at least one admits the longest sequence.
    pub(super) fn choose(&mut self, times: &mut Times, count: usize) -> Result<Vec<usize>> {
        let candidates: Vec<usize> = (0..times.strategies().len()).collect();
        let mut chosen = self.in_order(times, &candidates, count)?;
        while self.exchange(times, &candidates, &mut chosen)? {}
        let kept = chosen.len();
        self.in_order(times, &chosen, kept)
    }

    /// A greedy order of `candidates`: each next strategy leaves the least sum together with those before it, and
    /// shortens the sum.
    fn in_order(&mut self, times: &mut Times, candidates: &[usize], count: usize) -> Result<Vec<usize>> {
        let mut chosen: Vec<usize> = Vec::new();
        while chosen.len() < count {
            let left: Vec<usize> = candidates.iter().copied().filter(|one| !chosen.contains(one)).collect();
            // A strategy that shortens nothing is left out. The first strategy, which admits the longest sequence, is
            // always taken.
            let limit = served(times, &chosen)?.into_iter().sum::<Millis>() * SHORTER;
            let Some((_, best)) = self.addition(times, &chosen, &left, limit)? else { break };
            chosen.push(best);
        }
        Ok(chosen)
    }

    /// Makes the exchange that shortens the sum most; returns false if no exchange shortens it.
    fn exchange(&mut self, times: &mut Times, candidates: &[usize], chosen: &mut [usize]) -> Result<bool> {
        let mut limit = served(times, chosen)?.into_iter().sum::<Millis>() * SHORTER;
        let mut best = None;
        for place in 0..chosen.len() {
            let mut others = chosen.to_vec();
            others.swap_remove(place);
            let left: Vec<usize> = candidates.iter().copied().filter(|one| !chosen.contains(one)).collect();
            if let Some((sum, entering)) = self.addition(times, &others, &left, limit)? {
                limit = sum;
                best = Some((place, entering));
            }
        }
        if let Some((place, entering)) = best {
            chosen[place] = entering;
        }
        Ok(best.is_some())
    }

    /// The strategy of `candidates` whose addition to `chosen` leaves the least sum below `limit`.
    ///
    /// If no strategy in `chosen` admits the longest sequence, the added strategy must.
    fn addition(
        &mut self,
        times: &mut Times,
        chosen: &[usize],
        candidates: &[usize],
        mut limit: Millis,
    ) -> Result<Addition> {
        let is_covered = chosen.iter().any(|&one| self.admits_longest[one]);
        let before = served(times, chosen)?;
        let allowed = candidates.iter().filter(|&&one| is_covered || self.admits_longest[one]);
        let mut promising = Vec::new();
        for &one in allowed {
            (self.cancellation)(chosen.len())?;
            promising.push((optimistic(times, &before, one), one));
        }
        promising.sort_unstable();
        let mut best = None;
        for (bound, one) in promising {
            if bound >= limit {
                break;
            }
            (self.cancellation)(chosen.len())?;
            if let Some(sum) = known(times, &before, one, bound, limit)? {
                limit = sum;
                best = Some((sum, one));
            }
        }
        Ok(best)
    }
}

/// The least time of each batch under the strategies of `chosen`; infinite where none of them admits the batch.
pub(super) fn served(times: &mut Times, chosen: &[usize]) -> Result<Vec<Millis>> {
    Ok(fastest(times, chosen)?.into_iter().map(|(ms, _)| ms).collect())
}

/// The least time of each batch, and the strategy of `chosen` that reaches it.
pub(super) fn fastest(times: &mut Times, chosen: &[usize]) -> Result<Vec<(Millis, usize)>> {
    let batches = times.batches();
    let of_batch = |batch| {
        let mut by_bound: Vec<(Millis, usize)> = chosen.iter().map(|&one| (times.at_least(one, batch), one)).collect();
        by_bound.sort_unstable();
        let mut best = (Millis::INFINITY, usize::MAX);
        for (_, one) in by_bound {
            if let Some(ms) = times.below(one, batch, best.0)? {
                best = (ms, one);
            }
        }
        Ok(best)
    };
    (0..batches).map(of_batch).collect()
}

/// The sum over the batches under the assumption that `one` reaches its lower bounds.
fn optimistic(times: &mut Times, before: &[Millis], one: usize) -> Millis {
    before.iter().enumerate().map(|(batch, &ms)| ms.min(times.at_least(one, batch))).sum()
}

/// The sum over the batches with `one` added, if it is below `limit`; `bound` is the sum over its lower bounds.
fn known(times: &mut Times, before: &[Millis], one: usize, mut bound: Millis, limit: Millis) -> Result<Option<Millis>> {
    let mut sum = Millis::ZERO;
    for (batch, &ms) in before.iter().enumerate() {
        let assumed = ms.min(times.at_least(one, batch));
        let now = times.below(one, batch, ms)?.unwrap_or(ms);
        sum += now;
        bound += now - assumed;
        if bound >= limit {
            return Ok(None);
        }
    }
    Ok(Some(sum).filter(|&sum| sum < limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, LengthHistogram};
    use crate::cancellation::NEVER_CANCELLED;
    use crate::cost::preset;
    use crate::search::Planner;
    use crate::spec::{Cluster, Strategy};
    use crate::units::Tokens;

    const NAMES: [&str; 9] = [
        "4x<tp16>",
        "1x<tp16>+6x<tp8>",
        "1x<tp16>+12x<tp4>",
        "1x<tp8>+14x<tp4>",
        "8x<tp4,pp2>",
        "2x<tp8>+12x<tp4>",
        "16x<tp4>",
        "4x<tp8>+8x<tp4>",
        "2x<tp16>+8x<tp4>",
    ];

    fn strategies() -> Vec<Strategy> {
        NAMES.iter().map(|name| name.parse().unwrap()).collect()
    }

    /// Five batches of short sequences alone, and five that also have longer sequences. The greedy choice first takes
    /// a strategy that is best for none of the batches; an exchange then replaces it.
    fn batches() -> Vec<Batch> {
        let short: Vec<i64> = (0..400).map(|place| 30 + place * 17 % 2_903).collect();
        let drawn = |lengths: &[i64], seed| {
            LengthHistogram::new(lengths, None).unwrap().sample(Tokens(150_000), 5, seed, NEVER_CANCELLED).unwrap()
        };
        [drawn(&short, 3), drawn(&[&short[..], &[12_000; 9]].concat(), 4)].concat()
    }

    fn planner() -> Planner {
        Planner::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap(), Some(strategies())).unwrap()
    }

    /// The iteration time of each strategy on each batch, planned alone; infinite where the strategy does not admit
    /// the batch.
    fn table(planner: &Planner, batches: &[Batch]) -> Vec<Vec<f64>> {
        let alone = |one: Strategy| {
            Planner::new(planner.cost().profile().clone(), planner.cost().cluster().clone(), Some(vec![one]))
        };
        let time = |alone: &Planner, batch| alone.plan(batch).map_or(f64::INFINITY, |plan| plan.iteration_ms.0);
        strategies()
            .into_iter()
            .map(|one| {
                let alone = alone(one).unwrap();
                batches.iter().map(|batch| time(&alone, batch)).collect()
            })
            .collect()
    }

    fn sum(table: &[Vec<f64>], chosen: &[usize]) -> f64 {
        let least = |batch: usize| chosen.iter().map(|&one| table[one][batch]).fold(f64::INFINITY, f64::min);
        (0..table[0].len()).map(least).sum()
    }

    #[test]
    fn the_choice_is_as_good_as_the_best_of_all_subsets() {
        let (planner, batches) = (planner(), batches());
        let table = table(&planner, &batches);
        for count in 1..=4 {
            let mut times = Times::new(&planner, &batches, strategies(), NEVER_CANCELLED);
            let admits_longest = table.iter().map(|row| row.iter().all(|ms| ms.is_finite())).collect();
            let chosen = Choice { admits_longest, cancellation: &mut |_| Ok(()) }.choose(&mut times, count).unwrap();
            let subsets = (1_usize..1 << NAMES.len()).filter(|set| set.count_ones() as usize <= count);
            let members = |set: usize| (0..NAMES.len()).filter(|one| set >> one & 1 == 1).collect::<Vec<_>>();
            let best = subsets.map(|set| sum(&table, &members(set))).fold(f64::INFINITY, f64::min);
            let found = sum(&table, &chosen);
            assert!(chosen.len() <= count && found.is_finite());
            assert!((found / best - 1.0).abs() < 1e-9, "{count}: {chosen:?} takes {found}, the best {best}");
            let lazily: f64 = served(&mut times, &chosen).unwrap().iter().map(|ms| ms.0).sum();
            assert!((lazily / found - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn bounds_save_computed_times() {
        let (planner, batches) = (planner(), batches());
        let mut times = Times::new(&planner, &batches, strategies(), NEVER_CANCELLED);
        let everything: Vec<usize> = (0..NAMES.len()).collect();
        fastest(&mut times, &everything).unwrap();
        assert!(times.computed() * 2 < NAMES.len() * batches.len(), "{} times", times.computed());
    }

    #[test]
    fn the_caller_can_stop() {
        let (planner, batches) = (planner(), batches());
        let mut times = Times::new(&planner, &batches, strategies(), NEVER_CANCELLED);
        let mut cancellation = |_| Err(crate::Error::Stopped);
        let admits_longest = vec![true; NAMES.len()];
        let error = Choice { admits_longest, cancellation: &mut cancellation }.choose(&mut times, 2).unwrap_err();
        assert_eq!((error.code(), times.computed()), ("stopped", 0));
    }
}
