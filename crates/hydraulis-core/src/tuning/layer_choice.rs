//! One option for each layer: the least time within a memory limit.

use std::cmp::Ordering;

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

/// A prefix of layers that ends with one option: no other such prefix takes less memory and less time.
#[derive(Clone, Copy, Debug)]
struct Prefix {
    memory: u64,
    time: f64,
    /// Option and place of the prefix without its last layer.
    before: (u32, u32),
}

/// The choice of least time within the limit, and among equal times of least memory; none if no choice is within it.
///
/// Exact: for each last option it keeps every prefix that is not dominated in memory and time, so that the work grows with
/// the number of distinct memories and not with the limit.
pub fn choose_layers(problem: &LayerProblem) -> Option<LayerChoice> {
    let count = problem.options.len();
    let least = problem.options.iter().map(|option| option.memory).min()?;
    let mut fronts: Vec<Vec<Vec<Prefix>>> = Vec::with_capacity(problem.layers);
    for layer in 0..problem.layers {
        // The layers after this one take at least this much.
        let rest = least.checked_mul((problem.layers - layer - 1) as u64)?;
        let limit = problem.limit.checked_sub(rest)?;
        let front = |option: usize| match fronts.last() {
            None => start(problem.options[option], limit),
            Some(before) => extended(problem, before, option, limit),
        };
        let next: Vec<Vec<Prefix>> = (0..count).map(front).collect();
        fronts.push(next);
    }
    best(&fronts)
}

fn start(option: LayerOption, limit: u64) -> Vec<Prefix> {
    let first = Prefix { memory: option.memory, time: option.time, before: (0, 0) };
    if option.memory <= limit { vec![first] } else { Vec::new() }
}

/// The prefixes one layer longer that end with `option`.
fn extended(problem: &LayerProblem, before: &[Vec<Prefix>], option: usize, limit: u64) -> Vec<Prefix> {
    let own = problem.options[option];
    let mut all = Vec::with_capacity(before.iter().map(Vec::len).sum());
    for (number, front) in (0_u32..).zip(before) {
        let change = problem.transition.map_or(0.0, |times| times[number as usize][option]);
        let longer = (0_u32..).zip(front).map(|(place, prefix)| Prefix {
            memory: prefix.memory.saturating_add(own.memory),
            time: prefix.time + own.time + change,
            before: (number, place),
        });
        all.extend(longer.take_while(|prefix| prefix.memory <= limit));
    }
    undominated(all)
}

/// The prefixes that no other dominates, by ascending memory and therefore descending time.
fn undominated(mut all: Vec<Prefix>) -> Vec<Prefix> {
    all.sort_unstable_by(by_memory_then_time);
    let mut least = f64::INFINITY;
    all.retain(|prefix| {
        let is_better = prefix.time < least;
        least = least.min(prefix.time);
        is_better
    });
    all
}

fn by_memory_then_time(one: &Prefix, other: &Prefix) -> Ordering {
    let tie = || one.before.cmp(&other.before);
    one.memory.cmp(&other.memory).then(one.time.total_cmp(&other.time)).then_with(tie)
}

/// The best whole choice, followed back through its prefixes.
fn best(fronts: &[Vec<Vec<Prefix>>]) -> Option<LayerChoice> {
    let Some(last) = fronts.last() else {
        return Some(LayerChoice { time: 0.0, memory: 0, options: Vec::new() });
    };
    // Within a front times fall as memory rises, so the last prefix is its fastest.
    let ends = last.iter().enumerate().filter_map(|(option, front)| {
        let fastest = *front.last()?;
        Some((option, front.len() - 1, fastest))
    });
    let by_time = |one: &(usize, usize, Prefix), other: &(usize, usize, Prefix)| {
        one.2.time.total_cmp(&other.2.time).then(one.2.memory.cmp(&other.2.memory)).then(one.0.cmp(&other.0))
    };
    let (option, place, found) = ends.min_by(by_time)?;
    let mut options = vec![option];
    let mut at = (option, place);
    for front in fronts.iter().skip(1).rev() {
        let (option, place) = front[at.0][at.1].before;
        at = (option as usize, place as usize);
        options.push(at.0);
    }
    options.reverse();
    Some(LayerChoice { time: found.time, memory: found.memory, options })
}

#[cfg(test)]
mod tests {
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

    proptest! {
        #[test]
        fn no_other_choice_is_faster(
            (options, transition) in (1..5_usize).prop_flat_map(|count| (
                vec((1..20_u64, 1..20_u32), count), vec(vec(0..4_u32, count), count),
            )),
            layers in 1..6_usize,
            limit in 0..100_u64,
            has_changes in any::<bool>(),
        ) {
            let options: Vec<LayerOption> =
                options.into_iter().map(|(memory, time)| LayerOption { memory, time: time.into() }).collect();
            let transition: Vec<Vec<f64>> =
                transition.into_iter().map(|row| row.into_iter().map(f64::from).collect()).collect();
            let transition = has_changes.then_some(&transition[..]);
            let problem = LayerProblem { layers, options: &options, transition, limit };
            let found = choose_layers(&problem);
            prop_assert_eq!(found.as_ref().map(|found| found.time), exhaustive(&problem));
            if let Some(found) = found {
                prop_assert_eq!(time(&problem, &found.options), Some(found.time));
                prop_assert_eq!(found.memory, found.options.iter().map(|&one| options[one].memory).sum::<u64>());
            }
        }
    }
}
