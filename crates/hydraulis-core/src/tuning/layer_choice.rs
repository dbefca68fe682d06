//! One option for each layer: the least time within a memory limit.

use super::layer_bound::Bounds;

/// The memory and the time of a layer under one option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerOption {
    /// Memory of the layer, in the unit of the limit.
    pub memory: u64,
    /// Time of the layer.
    pub time: f64,
}

/// Identical layers, each of which takes one of the options.
#[derive(Clone, Copy, Debug)]
pub struct LayerProblem<'a> {
    /// Number of layers.
    pub layers: usize,
    /// The options of each layer.
    pub options: &'a [LayerOption],
    /// `transition[s][t]` is the time of a change from option `s` to option `t` in the next layer; none for free changes.
    pub transition: Option<&'a [Vec<f64>]>,
    /// Memory limit of all layers together.
    pub limit: u64,
}

/// The options of the layers, and their sums.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerChoice {
    /// Time of the layers and of the changes between them.
    pub time: f64,
    /// Memory of the layers.
    pub memory: u64,
    /// Option of each layer.
    pub options: Vec<usize>,
}

/// Why a problem has no choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLayerChoice {
    /// No choice is within the memory limit.
    Memory,
    /// The search for it takes more steps than are allowed.
    Steps,
}

impl LayerProblem<'_> {
    /// The time of a change from one option to another.
    pub(super) fn change(&self, from: usize, to: usize) -> f64 {
        self.transition.map_or(0.0, |times| times[from][to])
    }
}

/// A prefix of layers that may begin the best choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    pub(super) memory: u64,
    pub(super) time: f64,
    /// Option of its last layer.
    pub(super) option: u32,
    /// Place of the prefix without its last layer.
    before: u32,
}

/// Most steps of a search, about a second: each option that may extend a prefix is one.
const MOST_STEPS: usize = 60_000_000;
/// Steps of a prefix that is kept for sorting.
const STEPS_OF_PREFIX: usize = 16;
/// Most changes between options that one bound looks at.
const MOST_CHANGES: usize = 5_000_000;
/// The first limit of the time, as a share of the gap between the bound and a time that is known; it doubles.
const FIRST_SHARE: f64 = 1.0 / 1024.0;

/// The choice of least time within the limit, and among equal times of least memory.
///
/// Exact: it keeps every prefix that no other dominates and that may lead to a time up to a limit, which starts near a
/// lower bound of all choices and rises until a choice is within it.
pub fn choose_layers(problem: &LayerProblem) -> Result<LayerChoice, NoLayerChoice> {
    if problem.layers == 0 && !problem.options.is_empty() {
        return Ok(LayerChoice { time: 0.0, memory: 0, options: Vec::new() });
    }
    let least = problem.options.iter().map(|option| option.memory).min().ok_or(NoLayerChoice::Memory)?;
    let needed = least.checked_mul(problem.layers as u64).filter(|&needed| needed <= problem.limit);
    let least = needed.map(|_| least).ok_or(NoLayerChoice::Memory)?;
    let changes = problem.options.len().pow(2).saturating_mul(problem.layers);
    if changes > MOST_CHANGES {
        return Err(NoLayerChoice::Steps);
    }
    let bounds = Bounds::tightest(problem);
    let search = Search { problem, least, slack: bounds.slack(), excess: excess(problem), bounds };
    search.solve()
}

/// `[one * options + other]`: what a change from `one` takes longer at most than that from `other` to the same option.
fn excess(problem: &LayerProblem) -> Vec<f64> {
    let count = problem.options.len();
    if problem.transition.is_none() {
        return vec![0.0; count * count];
    }
    let of = |one: usize, other: usize| {
        (0..count).map(|to| problem.change(one, to) - problem.change(other, to)).fold(f64::NEG_INFINITY, f64::max)
    };
    (0..count).flat_map(|one| (0..count).map(move |other| (one, other))).map(|(one, other)| of(one, other)).collect()
}

struct Search<'a> {
    problem: &'a LayerProblem<'a>,
    /// Least memory of a layer.
    least: u64,
    bounds: Bounds,
    /// Rounding of bounds.
    slack: f64,
    excess: Vec<f64>,
}

impl Search<'_> {
    fn solve(&self) -> Result<LayerChoice, NoLayerChoice> {
        let mut left = MOST_STEPS;
        let gap = self.bounds.most - self.bounds.least;
        let mut share = FIRST_SHARE;
        loop {
            let most = self.bounds.least + gap * share;
            let layers = self.within(most, &mut left)?;
            if let Some(choice) = best(&layers).filter(|choice| choice.time <= most + self.slack || share >= 1.0) {
                return Ok(choice);
            }
            share = (share * 2.0).min(1.0);
        }
    }

    /// The prefixes of each number of layers that may lead to a time up to `most`.
    fn within(&self, most: f64, left: &mut usize) -> Result<Vec<Vec<Prefix>>, NoLayerChoice> {
        let mut layers: Vec<Vec<Prefix>> = Vec::with_capacity(self.problem.layers);
        for following in (0..self.problem.layers).rev() {
            let mut next = self.extended(layers.last(), following, most);
            let steps = layers.last().map_or(1, Vec::len) * self.problem.options.len() + next.len() * STEPS_OF_PREFIX;
            *left = left.checked_sub(steps).ok_or(NoLayerChoice::Steps)?;
            if following > 0 {
                self.drop_dominated(&mut next);
            }
            layers.push(next);
        }
        Ok(layers)
    }

    fn extended(&self, before: Option<&Vec<Prefix>>, following: usize, most: f64) -> Vec<Prefix> {
        let limit = self.problem.limit - self.least * following as u64;
        let most = most + self.slack;
        let may_lead = |prefix: &Prefix| {
            prefix.memory <= limit && self.bounds.by_price.iter().all(|bound| bound.at(prefix, following) <= most)
        };
        let options = || (0_u32..).zip(self.problem.options);
        let Some(before) = before else {
            let first =
                |(option, own): (u32, &LayerOption)| Prefix { memory: own.memory, time: own.time, option, before: 0 };
            return options().map(first).filter(may_lead).collect();
        };
        let mut next = Vec::with_capacity(before.len());
        for (place, prefix) in (0_u32..).zip(before) {
            let longer = options().map(|(option, own)| Prefix {
                memory: prefix.memory.saturating_add(own.memory),
                time: prefix.time + own.time + self.problem.change(prefix.option as usize, option as usize),
                option,
                before: place,
            });
            next.extend(longer.filter(may_lead));
        }
        next
    }

    /// Drops the prefixes that another one of at most their memory replaces, whatever option follows.
    fn drop_dominated(&self, prefixes: &mut Vec<Prefix>) {
        prefixes.sort_unstable_by(|one, other| {
            let tie = || (one.option, one.before).cmp(&(other.option, other.before));
            one.memory.cmp(&other.memory).then(one.time.total_cmp(&other.time)).then_with(tie)
        });
        let count = self.problem.options.len();
        // From which time on a prefix with each option is dominated.
        let mut dominated = vec![f64::INFINITY; count];
        prefixes.retain(|prefix| {
            let option = prefix.option as usize;
            let is_kept = prefix.time < dominated[option];
            if is_kept {
                let excess = &self.excess[option * count..][..count];
                dominated.iter_mut().zip(excess).for_each(|(time, excess)| *time = time.min(prefix.time + excess));
            }
            is_kept
        });
    }
}

/// The best whole choice, followed back through its prefixes.
fn best(layers: &[Vec<Prefix>]) -> Option<LayerChoice> {
    let by_time = |one: &&Prefix, other: &&Prefix| {
        one.time.total_cmp(&other.time).then(one.memory.cmp(&other.memory)).then(one.option.cmp(&other.option))
    };
    let found = *layers.last()?.iter().min_by(by_time)?;
    let mut options = vec![found.option as usize];
    let mut at = found;
    for prefixes in layers.iter().rev().skip(1) {
        at = prefixes[at.before as usize];
        options.push(at.option as usize);
    }
    options.reverse();
    Some(LayerChoice { time: found.time, memory: found.memory, options })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The least time over all choices, by trying each.
    fn exhaustive(problem: &LayerProblem) -> Option<f64> {
        let count = problem.options.len();
        let choices = (0..count.pow(u32::try_from(problem.layers).unwrap())).map(|code| {
            (0..problem.layers).map(|layer| code / count.pow(u32::try_from(layer).unwrap()) % count).collect::<Vec<_>>()
        });
        choices.filter_map(|choice| time(problem, &choice)).min_by(f64::total_cmp)
    }

    fn time(problem: &LayerProblem, choice: &[usize]) -> Option<f64> {
        let memory: u64 = choice.iter().map(|&option| problem.options[option].memory).sum();
        let own: f64 = choice.iter().map(|&option| problem.options[option].time).sum();
        let changes: f64 = choice.windows(2).map(|pair| problem.transition.map_or(0.0, |t| t[pair[0]][pair[1]])).sum();
        (memory <= problem.limit).then_some(own + changes)
    }

    /// Options, and the times of the changes between them.
    fn drawn(
        counts: Range<usize>,
        memories: Range<u64>,
        times: Range<u32>,
        changes: Range<u32>,
    ) -> impl Strategy<Value = (Vec<LayerOption>, Vec<Vec<f64>>)> {
        let option = (memories, times).prop_map(|(memory, time)| LayerOption { memory, time: time.into() });
        let change = changes.prop_map(f64::from);
        counts.prop_flat_map(move |count| (vec(option.clone(), count), vec(vec(change.clone(), count), count)))
    }

    proptest! {
        #[test]
        fn no_other_choice_is_faster(
            (options, transition) in drawn(1..5, 1..20, 1..20, 0..4),
            layers in 1..6_usize,
            limit in 0..100_u64,
            has_changes in any::<bool>(),
        ) {
            let transition = has_changes.then_some(&transition[..]);
            let problem = LayerProblem { layers, options: &options, transition, limit };
            let found = choose_layers(&problem).ok();
            prop_assert_eq!(found.as_ref().map(|found| found.time), exhaustive(&problem));
            if let Some(found) = found {
                prop_assert_eq!(time(&problem, &found.options), Some(found.time));
                prop_assert_eq!(found.memory, found.options.iter().map(|&one| options[one].memory).sum::<u64>());
            }
        }

        #[test]
        fn no_choice_of_a_dense_table_is_faster(
            (options, transition) in drawn(2..9, 1..40, 1..400, 0..20),
            layers in 6..16_usize,
            limit in 0..500_u64,
        ) {
            let problem = LayerProblem { layers, options: &options, transition: Some(&transition), limit };
            prop_assert_eq!(choose_layers(&problem).ok().map(|found| found.time), dense(&problem));
        }
    }

    /// The least time by a table of the least times for each memory and last option.
    fn dense(problem: &LayerProblem) -> Option<f64> {
        let limit = usize::try_from(problem.limit).unwrap();
        let memory = |option: usize| usize::try_from(problem.options[option].memory).unwrap();
        let mut before: Option<Vec<Vec<f64>>> = None;
        for _ in 0..problem.layers {
            let of = |used: usize, option: usize| {
                let Some(less) = used.checked_sub(memory(option)) else { return f64::INFINITY };
                let start = if less == 0 { 0.0 } else { f64::INFINITY };
                let ends = before.as_ref().map_or(start, |table: &Vec<Vec<f64>>| {
                    let ends = table[less].iter().enumerate();
                    ends.map(|(last, time)| time + problem.change(last, option)).fold(f64::INFINITY, f64::min)
                });
                ends + problem.options[option].time
            };
            let next = (0..=limit).map(|used| (0..problem.options.len()).map(|option| of(used, option)).collect());
            before = Some(next.collect());
        }
        before.into_iter().flatten().flatten().min_by(f64::total_cmp).filter(|time| time.is_finite())
    }

    #[test]
    fn searches_of_too_many_steps_end() {
        let options: Vec<LayerOption> =
            (1..=10_u32).map(|one| LayerOption { memory: one.into(), time: 1.0 / f64::from(one) }).collect();
        let problem = |layers: usize| LayerProblem { layers, options: &options, transition: None, limit: 300_000 };
        assert_eq!(choose_layers(&problem(100_000)), Err(NoLayerChoice::Steps));
        assert_eq!(choose_layers(&problem(300_001)), Err(NoLayerChoice::Memory));
        assert!(choose_layers(&problem(100)).is_ok());
    }
}
