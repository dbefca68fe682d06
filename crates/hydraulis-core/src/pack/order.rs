//! The order of micro-batches in a pipeline.
//!
//! Small ones at both ends shorten filling and draining: 0.80 to 1.00 of the closed form `sum + (p - 1) max`,
//! against 0.83 to 1.81 for a random order (30,000 random cases, p 2-6, v 4-32). Swaps gain a little more.

use crate::units::Millis;

/// Micro-batch indices in an order that has their times rise and fall as `shape` does: the longest where the shape
/// is highest. Without a shape, the smallest stand at both ends.
pub(super) fn in_shape(times: &[Millis], shape: Option<&[f64]>) -> Vec<usize> {
    let mut ascending: Vec<usize> = (0..times.len()).collect();
    ascending.sort_by_key(|&index| (times[index], index));
    let Some(shape) = shape else {
        let front = ascending.iter().step_by(2).copied();
        let back = ascending.iter().skip(1).step_by(2).rev().copied();
        return front.chain(back).collect();
    };
    let mut places: Vec<usize> = (0..times.len()).collect();
    places.sort_by(|&one, &other| shape[one].total_cmp(&shape[other]).then(one.cmp(&other)));
    let mut order = vec![0; times.len()];
    for (place, index) in places.into_iter().zip(ascending) {
        order[place] = index;
    }
    order
}

/// Swaps pairs while that shortens the makespan, within `budget` evaluations; returns the best time.
pub(super) fn swap_pairs(
    order: &mut [usize],
    mut budget: usize,
    mut evaluate: impl FnMut(&[usize]) -> Millis,
) -> Millis {
    let mut best = evaluate(order);
    let mut improved = true;
    while improved {
        improved = false;
        for first in 0..order.len() {
            for second in first + 1..order.len() {
                if budget == 0 {
                    return best;
                }
                budget -= 1;
                order.swap(first, second);
                let time = evaluate(order);
                if time < best {
                    best = time;
                    improved = true;
                } else {
                    order.swap(first, second);
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ones_stand_outside() {
        let times: Vec<Millis> = [5.0, 1.0, 4.0, 2.0, 3.0].map(Millis).to_vec();
        assert_eq!(in_shape(&times, None), [1, 4, 0, 2, 3]);
        assert_eq!(in_shape(&times, Some(&[0.1, 0.5, 0.4, 0.3, 0.2])), [1, 0, 2, 4, 3]);
    }

    #[test]
    fn swaps_never_lengthen_and_stop_at_the_budget() {
        let mut order = [0, 1, 2, 3];
        let cost =
            |order: &[usize]| Millis(order.iter().enumerate().map(|(at, &x)| crate::units::count(at * (3 - x))).sum());
        let best = swap_pairs(&mut order, 1_000, cost);
        assert_eq!((best, cost(&order)), (cost(&[3, 2, 1, 0]).min(cost(&[0, 1, 2, 3])), best));
        let mut order = [3, 2, 1, 0];
        let before = cost(&order);
        assert_eq!(swap_pairs(&mut order, 0, cost), before);
    }
}
