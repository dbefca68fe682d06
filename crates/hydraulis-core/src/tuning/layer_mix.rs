//! Mixes of options for identical layers: how many layers take each option.

use std::cmp::Ordering;

use crate::units::count;

/// The memory and the times of a layer under one option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixOption {
    /// Memory of the layer, in the unit of the limit.
    pub memory: u64,
    /// Time of a micro-batch.
    pub time: f64,
    /// Time of the last micro-batch, which also reduces the gradients.
    pub last_time: f64,
}

/// The sums of a mix over its layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Memory of the layers.
    pub memory: u64,
    /// Time of a micro-batch.
    pub time: f64,
    /// Time of the last micro-batch.
    pub last_time: f64,
    /// Last option of the mix, and its place among the mixes of one layer less.
    before: (usize, usize),
}

const EMPTY: Mix = Mix { memory: 0, time: 0.0, last_time: 0.0, before: (0, 0) };

impl Mix {
    /// The mix with one more layer, if the sums stay within the limit.
    fn with(&self, option: usize, own: MixOption, place: usize, limit: u64) -> Option<Mix> {
        let memory = self.memory.checked_add(own.memory).filter(|&memory| memory <= limit)?;
        let (time, last_time) = (self.time + own.time, self.last_time + own.last_time);
        Some(Mix { memory, time, last_time, before: (option, place) })
    }

    fn by_sums(&self, other: &Mix) -> Ordering {
        let times = || self.time.total_cmp(&other.time).then(self.last_time.total_cmp(&other.last_time));
        self.memory.cmp(&other.memory).then_with(times).then(self.before.cmp(&other.before))
    }
}

/// The undominated mixes of every number of layers.
///
/// A mix is dominated if another one of as many layers needs no more memory and no more time in both kinds of
/// micro-batches. Replacing a part of a mix by one that dominates it never makes the mix worse, so extending undominated
/// mixes by one layer at a time finds every undominated sum.
#[derive(Clone, Debug)]
pub struct LayerMixes {
    options: usize,
    /// The mixes of each number of layers, by ascending memory.
    fronts: Vec<Vec<Mix>>,
}

impl LayerMixes {
    /// The mixes of up to `most` layers with at most `limit` memory.
    pub fn new(options: &[MixOption], most: usize, limit: u64) -> LayerMixes {
        LayerMixes::where_possible(options, most, limit, |_, _| true)
    }

    /// The mixes of `layers` layers with at most `limit` memory that reach all goals, and the parts of these mixes.
    ///
    /// A part of a mix is dropped if its own sum and the least sum of the layers that it lacks exceed a goal: layers that
    /// share the rest of the memory take at least as long as fractions of options on the lower convex hull.
    pub fn reaching(options: &[MixOption], layers: usize, limit: u64, goals: &[Goal]) -> LayerMixes {
        let hulls: Vec<(&Goal, Hull)> = goals.iter().map(|goal| (goal, Hull::new(options, goal))).collect();
        LayerMixes::where_possible(options, layers, limit, |own, mix| {
            let (lacking, rest) = (count(layers - own), count(limit - mix.memory));
            hulls.iter().all(|(goal, hull)| {
                let least = if own == layers { 0.0 } else { lacking * hull.least(rest / lacking) };
                goal.sum(mix.time, mix.last_time) + least <= goal.most
            })
        })
    }

    fn where_possible(
        options: &[MixOption],
        most: usize,
        limit: u64,
        is_possible: impl Fn(usize, &Mix) -> bool,
    ) -> LayerMixes {
        let useful: Vec<usize> = (0..options.len()).filter(|&option| !is_dominated(options, option)).collect();
        let mut fronts = vec![vec![EMPTY]];
        for layers in 1..=most {
            let mut all = Vec::new();
            for (place, mix) in fronts[layers - 1].iter().enumerate() {
                // Options in ascending order, so that each mix comes up once.
                for &option in useful.iter().filter(|&&option| layers == 1 || option >= mix.before.0) {
                    let longer = mix.with(option, options[option], place, limit);
                    all.extend(longer.filter(|longer| is_possible(layers, longer)));
                }
            }
            fronts.push(undominated(all));
        }
        LayerMixes { options: options.len(), fronts }
    }

    /// The mixes of this number of layers within a limit, by ascending memory.
    pub fn within(&self, layers: usize, limit: u64) -> &[Mix] {
        let front = self.fronts.get(layers).map_or(&[][..], |front| front);
        &front[..front.partition_point(|mix| mix.memory <= limit)]
    }

    /// The number of layers of each option in a mix of `layers` layers.
    pub fn counts(&self, layers: usize, mix: &Mix) -> Vec<usize> {
        let mut counts = vec![0; self.options];
        let mut at = *mix;
        for below in self.fronts[..layers].iter().rev() {
            let (option, place) = at.before;
            counts[option] += 1;
            at = below[place];
        }
        counts
    }
}

/// A limit on a weighted sum of both times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Weight of the time of a micro-batch.
    pub time: f64,
    /// Weight of the time of the last micro-batch.
    pub last_time: f64,
    /// The greatest sum.
    pub most: f64,
}

impl Goal {
    fn sum(&self, time: f64, last_time: f64) -> f64 {
        self.time * time + self.last_time * last_time
    }
}

/// The lower convex hull of the options' weighted times over their memory, from the least memory to the least time.
struct Hull(Vec<(f64, f64)>);

impl Hull {
    fn new(options: &[MixOption], goal: &Goal) -> Hull {
        let point = |option: &MixOption| (count(option.memory), goal.sum(option.time, option.last_time));
        let mut points: Vec<(f64, f64)> = options.iter().map(point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let mut hull: Vec<(f64, f64)> = Vec::new();
        for point in points {
            if hull.last().is_some_and(|last| last.1 <= point.1) {
                continue;
            }
            while let [.., before, last] = hull[..] {
                let is_above = (last.1 - before.1) * (point.0 - before.0) >= (point.1 - before.1) * (last.0 - before.0);
                if !is_above {
                    break;
                }
                hull.pop();
            }
            hull.push(point);
        }
        Hull(hull)
    }

    /// The least time of a layer with this much memory on average; infinite if no option fits.
    fn least(&self, memory: f64) -> f64 {
        let next = self.0.partition_point(|point| point.0 <= memory);
        match (next.checked_sub(1).map(|last| self.0[last]), self.0.get(next)) {
            (None, _) => f64::INFINITY,
            (Some(last), None) => last.1,
            (Some(last), Some(next)) => last.1 + (memory - last.0) / (next.0 - last.0) * (next.1 - last.1),
        }
    }
}

/// Whether another option is no worse in any way; of equal options the first stays.
fn is_dominated(options: &[MixOption], own: usize) -> bool {
    let one = options[own];
    options.iter().enumerate().any(|(place, other)| {
        let no_worse = other.memory <= one.memory && other.time <= one.time && other.last_time <= one.last_time;
        no_worse && (place < own || *other != one) && place != own
    })
}

/// The mixes that no other dominates, by ascending memory.
fn undominated(mut all: Vec<Mix>) -> Vec<Mix> {
    all.sort_unstable_by(Mix::by_sums);
    // Times of the mixes so far that no other of them beats in both: ascending in the first, descending in the second.
    let mut stairs: Vec<(f64, f64)> = Vec::new();
    all.retain(|mix| {
        let place = stairs.partition_point(|stair| stair.0 <= mix.time);
        if place > 0 && stairs[place - 1].1 <= mix.last_time {
            return false;
        }
        let beaten = stairs[place..].iter().take_while(|stair| stair.1 >= mix.last_time).count();
        let equal = usize::from(place > 0 && stairs[place - 1].0.total_cmp(&mix.time).is_eq());
        stairs.splice(place - equal..place + beaten, [(mix.time, mix.last_time)]);
        true
    });
    all
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The sums of every mix of `layers` layers.
    fn every(options: &[MixOption], layers: usize) -> Vec<(u64, f64, f64)> {
        let mut sums = vec![(0, 0.0, 0.0)];
        for _ in 0..layers {
            sums = sums
                .iter()
                .flat_map(|sum| options.iter().map(|o| (sum.0 + o.memory, sum.1 + o.time, sum.2 + o.last_time)))
                .collect();
        }
        sums
    }

    proptest! {
        #[test]
        fn no_mix_is_better_than_all_of_the_front(
            options in vec((1..12_u64, 1..9_u32, 0..4_u32), 1..5),
            layers in 1..6_usize,
            limit in 0..60_u64,
        ) {
            let options: Vec<MixOption> = options.into_iter().map(|(memory, time, more)| MixOption {
                memory, time: time.into(), last_time: (time + more).into(),
            }).collect();
            let mixes = LayerMixes::new(&options, layers, limit);
            let front = mixes.within(layers, limit);
            for (memory, time, last) in every(&options, layers) {
                let is_covered = front.iter().any(|mix| mix.memory <= memory && mix.time <= time && mix.last_time <= last);
                prop_assert!(is_covered || memory > limit);
            }
            for mix in front {
                let counts = mixes.counts(layers, mix);
                let memory: u64 = counts.iter().zip(&options).map(|(&n, option)| n as u64 * option.memory).sum();
                let time: f64 = counts.iter().zip(&options).map(|(&n, option)| count(n) * option.time).sum();
                prop_assert_eq!((counts.iter().sum::<usize>(), memory, time), (layers, mix.memory, mix.time));
                prop_assert!(mix.memory <= limit);
                let beats = |other: &Mix| {
                    other != mix && other.memory <= mix.memory && other.time <= mix.time && other.last_time <= mix.last_time
                };
                prop_assert!(!front.iter().any(beats));
            }
        }

        /// The mixes that reach the goals are the same with and without the bounds of their parts.
        #[test]
        fn goals_drop_no_mix_that_reaches_them(
            options in vec((1..12_u64, 1..9_u32, 0..4_u32), 1..5),
            layers in 1..6_usize,
            limit in 0..60_u64,
            (weights, most) in ((0..4_u32, 0..4_u32), 0..60_u32),
        ) {
            let options: Vec<MixOption> = options.into_iter().map(|(memory, time, more)| MixOption {
                memory, time: time.into(), last_time: (time + more).into(),
            }).collect();
            let goal = Goal { time: weights.0.into(), last_time: weights.1.into(), most: most.into() };
            let reaches = |mix: &&Mix| goal.sum(mix.time, mix.last_time) <= goal.most;
            let sums = |mix: &Mix| (mix.memory, mix.time, mix.last_time);
            // The margin covers the rounding of the bound.
            let bounds = [Goal { most: goal.most + 1e-9, ..goal }, Goal { time: 1.0, last_time: 0.0, most: f64::INFINITY }];
            let found = LayerMixes::reaching(&options, layers, limit, &bounds);
            let all = LayerMixes::new(&options, layers, limit);
            let found: Vec<_> = found.within(layers, limit).iter().filter(reaches).map(sums).collect();
            let all: Vec<_> = all.within(layers, limit).iter().filter(reaches).map(sums).collect();
            prop_assert_eq!(found, all);
        }
    }
}
