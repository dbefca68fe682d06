//! The order in which a stage computes.

/// One computation of a stage on one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// The forward pass.
    Forward(usize),
    /// The backward pass.
    Backward(usize),
}

/// How many forwards stage `stage` of `stages` runs before its first backward, of `micro_batches`.
pub(super) fn warm_up(stage: usize, stages: usize, micro_batches: usize) -> usize {
    micro_batches.min(stages - 1 - stage)
}

/// The computations of one stage in 1F1B order: warm-up forwards, then pairs, then the backwards left.
pub fn compute_order(stage: usize, stages: usize, micro_batches: usize) -> impl Iterator<Item = Compute> {
    let warm = warm_up(stage, stages, micro_batches);
    let steady = micro_batches - warm;
    let pairs = (0..steady).flat_map(move |n| [Compute::Forward(warm + n), Compute::Backward(n)]);
    (0..warm).map(Compute::Forward).chain(pairs).chain((steady..micro_batches).map(Compute::Backward))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Compute::{Backward as B, Forward as F};

    #[test]
    fn the_textbook_orders() {
        let order = |stage, stages, v| compute_order(stage, stages, v).collect::<Vec<_>>();
        assert_eq!(order(0, 1, 2), [F(0), B(0), F(1), B(1)]);
        assert_eq!(order(0, 3, 4), [F(0), F(1), F(2), B(0), F(3), B(1), B(2), B(3)]);
        assert_eq!(order(2, 3, 2), [F(0), B(0), F(1), B(1)]);
        assert_eq!(order(0, 4, 2), [F(0), F(1), B(0), B(1)]);
    }
}
