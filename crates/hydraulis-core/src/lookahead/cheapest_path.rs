//! The cheapest choice for each of several consecutive steps, where every change has the same cost.

use crate::units::Millis;

/// One choice for each step, such that the sum of `costs[step][choice]` and of `switch` for each change is least.
///
/// `before` is the choice before the first step, if there is one to change from. Among equal sums a step keeps the
/// choice of the step before it, and otherwise takes its `preferred` choice. Each step evaluates each choice twice:
/// the choice either stays, or follows the cheapest of all choices (dynamic programming, Bellman 1957).
pub(super) fn cheapest(
    costs: &[Vec<Millis>],
    switch: Millis,
    before: Option<usize>,
    preferred: &[usize],
) -> Vec<usize> {
    let mut came_from: Vec<Vec<usize>> = Vec::new();
    let mut sums: Vec<Millis> = Vec::new();
    for (step, costs) in costs.iter().enumerate() {
        let from = match step {
            0 => vec![(Millis::ZERO, 0); costs.len()],
            _ => reached(&sums, switch, preferred[step - 1]),
        };
        let first = |choice| if step == 0 && before.is_some_and(|one| one != choice) { switch } else { Millis::ZERO };
        sums = (0..costs.len()).map(|choice| from[choice].0 + first(choice) + costs[choice]).collect();
        came_from.push(from.into_iter().map(|(_, choice)| choice).collect());
    }
    let Some(&last) = preferred.last() else { return Vec::new() };
    let mut path = vec![least(&sums, last)];
    for from in came_from.iter().skip(1).rev() {
        path.push(from[path[path.len() - 1]]);
    }
    path.reverse();
    path
}

/// For each choice of a step: the least cost of the steps before it, including a change, and the last choice of those
/// steps.
fn reached(sums: &[Millis], switch: Millis, preferred: usize) -> Vec<(Millis, usize)> {
    let cheapest = least(sums, preferred);
    let changed = sums[cheapest] + switch;
    let from = |(choice, &stayed): (usize, &Millis)| {
        if stayed <= changed { (stayed, choice) } else { (changed, cheapest) }
    };
    sums.iter().enumerate().map(from).collect()
}

fn least(sums: &[Millis], preferred: usize) -> usize {
    (0..sums.len()).min_by_key(|&choice| (sums[choice], choice != preferred, choice)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn sum(costs: &[Vec<Millis>], switch: f64, before: Option<usize>, path: &[usize]) -> f64 {
        let own: f64 = costs.iter().zip(path).map(|(costs, &choice)| costs[choice].0).sum();
        let chain: Vec<usize> = before.into_iter().chain(path.iter().copied()).collect();
        let changes = chain.windows(2).filter(|pair| pair[0] != pair[1]).count();
        own + switch * crate::units::count(changes)
    }

    fn every_path(steps: usize, choices: usize) -> impl Iterator<Item = Vec<usize>> {
        let number = choices.pow(u32::try_from(steps).unwrap());
        (0..number).map(move |code| {
            (0..steps).map(|step| code / choices.pow(u32::try_from(step).unwrap()) % choices).collect()
        })
    }

    proptest! {
        /// The costs are small whole numbers, so that sums are exact and ties are frequent.
        #[test]
        fn no_other_path_is_cheaper(
            costs in (1..=3_usize, 1..=5_usize).prop_flat_map(|(choices, steps)| vec(vec(0..9_u32, choices), steps)),
            switch in 0..5_u32,
            before in proptest::option::of(0..3_usize),
        ) {
            let choices = costs[0].len();
            let costs: Vec<Vec<Millis>> =
                costs.iter().map(|row| row.iter().map(|&ms| Millis(f64::from(ms))).collect()).collect();
            let before = before.filter(|&one| one < choices);
            let switch = f64::from(switch);
            let path = cheapest(&costs, Millis(switch), before, &vec![0; costs.len()]);
            prop_assert_eq!(path.len(), costs.len());
            let found = sum(&costs, switch, before, &path);
            for other in every_path(costs.len(), choices) {
                prop_assert!(found <= sum(&costs, switch, before, &other), "{path:?}, and {other:?} is cheaper");
            }
        }
    }

    #[test]
    fn among_equal_paths_a_step_takes_its_preferred_strategy() {
        let costs = vec![vec![Millis(1.0); 3]; 2];
        assert_eq!(cheapest(&costs, Millis::ZERO, None, &[2, 1]), [1, 1], "staying comes first");
        assert_eq!(cheapest(&costs[..1], Millis::ZERO, None, &[2]), [2]);
    }

    #[test]
    fn an_impossible_strategy_is_never_taken() {
        let costs = vec![vec![Millis::INFINITY, Millis(5.0)], vec![Millis(1.0), Millis::INFINITY]];
        assert_eq!(cheapest(&costs, Millis(1e9), Some(0), &[0, 0]), [1, 0]);
    }
}
