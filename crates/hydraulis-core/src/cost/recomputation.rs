//! How much more there is to do where the backward pass computes activations again.

use crate::spec::CheckpointingKind;

/// Forward and backward together, relative to what they are without checkpointing, by kind of work.
///
/// By operations: a matrix takes 2 for each parameter forward and 4 backward; attention 2 forward and 5 backward, which computes
/// its scores again anyway (Dao 2023). What a tensor or context group exchanges and what is done element by element is as much
/// backward as forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recomputation {
    pub(super) matrices: f64,
    pub(super) attention: f64,
    pub(super) exchanges: f64,
    pub(super) elementwise: f64,
}

impl Recomputation {
    /// Of a kind of checkpointing.
    pub(super) fn of(kind: CheckpointingKind) -> Recomputation {
        let none = Recomputation { matrices: 1.0, attention: 1.0, exchanges: 1.0, elementwise: 1.0 };
        match kind {
            CheckpointingKind::None => none,
            CheckpointingKind::Selective => Recomputation { exchanges: 1.5, elementwise: 1.5, ..none },
            CheckpointingKind::Full => {
                Recomputation { matrices: 4.0 / 3.0, attention: 9.0 / 7.0, exchanges: 1.5, elementwise: 1.5 }
            }
        }
    }

    /// The forward pass's share of the time of matrix products, of which a micro-batch mostly consists.
    pub(super) fn forward_share(self) -> f64 {
        1.0 / (3.0 * self.matrices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_does_no_less_than_the_one_before() {
        let every = CheckpointingKind::ALL.map(Recomputation::of);
        for pair in every.windows(2) {
            let work = |one: Recomputation| [one.matrices, one.attention, one.exchanges, one.elementwise];
            assert!(work(pair[0]).iter().zip(work(pair[1])).all(|(less, more)| *less <= more));
        }
        let shares = every.map(Recomputation::forward_share);
        assert!(
            shares.iter().zip([1.0 / 3.0, 1.0 / 3.0, 0.25]).all(|(share, by_hand)| (share - by_hand).abs() < 1e-15)
        );
    }
}
