//! The operations of forward and backward, and the additional ones if the backward pass recomputes activations.

use crate::spec::{CheckpointingKind, LayerPlan};

/// Operations per parameter of a matrix and token: forward, and with the backward pass.
const MATRICES: [f64; 2] = [2.0, 6.0];
/// Operations of causal attention per squared token and unit of the queries' width: forward, and with the backward
/// pass, which computes the scores again (Dao 2023).
const ATTENTION: [f64; 2] = [2.0, 7.0];
/// The forward share of a group's exchanges and of element-wise work, and the whole: forward and backward take as much.
const ALIKE: [f64; 2] = [0.5, 1.0];

/// Operations of forward and backward without checkpointing: of matrices and of attention, for the units above.
pub(super) const OPERATIONS: [f64; 2] = [MATRICES[1], ATTENTION[1]];

/// Forward and backward together, relative to the same without checkpointing, by kind of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recomputation {
    pub(super) matrices: f64,
    pub(super) attention: f64,
    pub(super) exchanges: f64,
    pub(super) elementwise: f64,
}

impl Recomputation {
    /// The work of layers that follow the plan, on average.
    pub(super) fn of(layers: LayerPlan) -> Recomputation {
        let ([usual, other], share) = (layers.kinds().map(Recomputation::of_kind), layers.share());
        let mean = |part: fn(&Recomputation) -> f64| part(&usual) + share * (part(&other) - part(&usual));
        Recomputation {
            matrices: mean(|one| one.matrices),
            attention: mean(|one| one.attention),
            exchanges: mean(|one| one.exchanges),
            elementwise: mean(|one| one.elementwise),
        }
    }

    fn of_kind(kind: CheckpointingKind) -> Recomputation {
        let again = |[forward, whole]: [f64; 2]| (whole + forward) / whole;
        let none = Recomputation { matrices: 1.0, attention: 1.0, exchanges: 1.0, elementwise: 1.0 };
        let selective = Recomputation { exchanges: again(ALIKE), elementwise: again(ALIKE), ..none };
        match kind {
            CheckpointingKind::None | CheckpointingKind::Offload => none,
            CheckpointingKind::Selective => selective,
            CheckpointingKind::Full | CheckpointingKind::FullOffload => {
                Recomputation { matrices: again(MATRICES), attention: again(ATTENTION), ..selective }
            }
        }
    }

    /// The matrix products, relative to those of trained matrices without checkpointing, if the share `frozen` of the
    /// parameters has no gradient: a gradient takes as many operations as the forward pass.
    pub(super) fn products(self, frozen: f64) -> f64 {
        self.matrices - frozen * MATRICES[0] / MATRICES[1]
    }

    /// The forward pass's share of the time of matrix products, which dominate a micro-batch.
    pub(super) fn forward_share(self, frozen: f64) -> f64 {
        MATRICES[0] / (MATRICES[1] * self.products(frozen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_does_no_less_than_the_one_before() {
        let every = CheckpointingKind::ON_DEVICE.map(|kind| Recomputation::of(LayerPlan::uniform(kind)));
        for pair in every.windows(2) {
            let work = |one: Recomputation| [one.matrices, one.attention, one.exchanges, one.elementwise];
            assert!(work(pair[0]).iter().zip(work(pair[1])).all(|(less, more)| *less <= more));
        }
        for (frozen, by_hand) in [(0.0, [1.0 / 3.0, 1.0 / 3.0, 0.25]), (1.0, [0.5, 0.5, 1.0 / 3.0])] {
            let shares = every.map(|one| one.forward_share(frozen));
            assert!(shares.iter().zip(by_hand).all(|(share, by_hand)| (share - by_hand).abs() < 1e-15));
        }
    }
}
