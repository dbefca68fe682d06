//! The memory plan of one replica's layers.

use crate::spec::CheckpointingKind;

/// The memory plan of each layer's activations, for every stage of a replica.
///
/// Every plan today is uniform: all layers of all stages have one kind of checkpointing. Costs and memory use the plan
/// instead of the kind's name, so that a plan with several kinds would change only this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerPlan {
    uniform: CheckpointingKind,
}

impl LayerPlan {
    /// The plan that saves all activations for backward.
    pub const KEEP: LayerPlan = LayerPlan::uniform(CheckpointingKind::None);

    /// The plan with one kind of checkpointing in every layer.
    pub const fn uniform(kind: CheckpointingKind) -> LayerPlan {
        LayerPlan { uniform: kind }
    }

    /// The kind of checkpointing of every layer.
    pub fn kind(self) -> CheckpointingKind {
        self.uniform
    }

    /// Whether no layer computes activations a second time.
    pub fn keeps_activations(self) -> bool {
        self == LayerPlan::KEEP
    }
}
