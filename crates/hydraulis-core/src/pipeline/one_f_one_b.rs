//! The order of a stage's computations.

/// One computation of a stage on one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// The forward pass.
    Forward(usize),
    /// The backward pass.
    Backward(usize),
}

/// The `n`-th of the `2 v` computations of stage `stage` of `stages`, for `v` micro-batches: warm-up forwards, then a
/// forward and a backward in turn, then the remaining backwards.
pub(super) fn computation(n: usize, stage: usize, stages: usize, micro_batches: usize) -> Compute {
    let warm = micro_batches.min(stages - 1 - stage);
    match n {
        _ if n < warm => Compute::Forward(n),
        _ if n >= 2 * micro_batches - warm => Compute::Backward(n - micro_batches),
        _ if (n - warm).is_multiple_of(2) => Compute::Forward(warm + (n - warm) / 2),
        _ => Compute::Backward((n - warm) / 2),
    }
}

/// The computations of one stage in 1F1B order.
pub fn compute_order(stage: usize, stages: usize, micro_batches: usize) -> impl Iterator<Item = Compute> {
    (0..2 * micro_batches).map(move |n| computation(n, stage, stages, micro_batches))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Scheme;
    use Compute::{Backward as B, Forward as F};

    #[test]
    fn orders_equal_those_of_the_textbook() {
        let order = |stage, stages, v| compute_order(stage, stages, v).collect::<Vec<_>>();
        assert_eq!(order(0, 1, 2), [F(0), B(0), F(1), B(1)]);
        assert_eq!(order(0, 3, 4), [F(0), F(1), F(2), B(0), F(3), B(1), B(2), B(3)]);
        assert_eq!(order(2, 3, 2), [F(0), B(0), F(1), B(1)]);
        assert_eq!(order(0, 4, 2), [F(0), F(1), B(0), B(1)]);
    }

    #[test]
    fn a_stage_has_the_schemes_number_of_micro_batches_in_flight() {
        let scheme: Scheme = "<pp4>".parse().unwrap();
        for stage in 0..4 {
            let in_flight = compute_order(usize::from(stage), 4, 9).scan(0_u16, |in_flight, compute| {
                match compute {
                    F(_) => *in_flight += 1,
                    B(_) => *in_flight -= 1,
                }
                Some(*in_flight)
            });
            assert_eq!(in_flight.max(), Some(scheme.in_flight(stage)));
        }
    }
}
