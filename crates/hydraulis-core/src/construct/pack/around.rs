//! The times of a pipeline's micro-batches around one that takes longer than all others.
//!
//! While that one passes through the stages, each stage computes parts of its neighbours. The times that end earliest, by
//! linear programs over the critical paths, rise to the longest by `(p + 1) / (p - 1)` from one to the next, as in the best
//! pipeline of many micro-batches, and fall slowly after it. Times that rise so over `p - 1` micro-batches and fall evenly end
//! at most 3 % after the optimum, on 2 and 4 stages.

use crate::units::{Millis, count};

/// The times of `number` micro-batches of `all` together, of which one takes `longest`, on this many stages, two or
/// more; after the longest they fall evenly, to the share `fall` of the first of them one place after the last.
pub(super) fn around(longest: Millis, all: Millis, number: usize, stages: usize, fall: f64) -> Vec<f64> {
    let ratio = count(stages - 1) / count(stages + 1);
    let before = (stages - 1).min((number - 1) / 2);
    let mut times: Vec<f64> =
        std::iter::successors(Some(longest.0), |time| Some(time * ratio)).take(before + 1).collect();
    times.reverse();
    let rest = (all.0 - times.iter().sum::<f64>()).max(0.0);
    let after = number - 1 - before;
    let falling = |place: usize| 1.0 - (1.0 - fall) * count(place) / count(after);
    let sum: f64 = (0..after).map(falling).sum();
    times.extend((0..after).map(|place| rest * falling(place) / sum));
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{MakespanBuffers, makespan};
    use crate::spec::PackingBudget;

    fn end(times: &[f64], stages: usize) -> f64 {
        let times: Vec<Millis> = times.iter().copied().map(Millis).collect();
        makespan(&times, &vec![1.0; stages], 1.0 / 3.0, &mut MakespanBuffers::default()).0
    }

    /// Ends of the optimum by linear programming, for a longest micro-batch of 1,000 and others of `work` together, with a
    /// fixed cost of 10 each.
    #[test]
    fn a_shape_ends_near_the_optimum() {
        for (stages, work, optimum) in
            [(2, 1_000.0, 2_582.0), (2, 3_000.0, 4_450.0), (4, 2_000.0, 4_976.0), (4, 5_000.0, 7_389.0)]
        {
            let shape = |number: usize| {
                around(
                    Millis(1_000.0),
                    Millis(1_000.0 + work + 10.0 * count(number - 1)),
                    number,
                    stages,
                    PackingBudget::ONLINE.fall,
                )
            };
            let ends = (2..14).map(|number| end(&shape(number), stages));
            let best = ends.fold(f64::INFINITY, f64::min);
            assert!((optimum - 1.0..optimum * 1.03).contains(&best), "{stages} {work}: {best} {optimum}");
        }
    }

    #[test]
    fn one_or_two_micro_batches_have_a_shape() {
        assert_eq!(around(Millis(5.0), Millis(5.0), 1, 4, 0.2), [5.0]);
        assert_eq!(around(Millis(5.0), Millis(7.0), 2, 4, 0.2), [5.0, 2.0]);
    }
}
