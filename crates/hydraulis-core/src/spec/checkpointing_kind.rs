//! The activations that a rank computes again for the backward, or copies to host memory, instead of saving them.
//!
//! A scheme has one kind for all layers of a replica, or two kinds in stated numbers of layers
//! ([`LayerPlan`](crate::spec::LayerPlan)). `none` saves all activations. `full` saves each layer's input.
//! `selective` also saves attention and the results of matrix products. `offload` saves what `none` saves, and
//! `full-offload` what `full` saves, in host memory: the device holds the activations of two layers at once. Times, the
//! forward's share and token caps depend on the kind, so a profile treats the same degrees under another kind as another
//! scheme. Gradients do not depend on the kind.

/// The kind of checkpointing of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointingKind {
    /// A layer saves everything that the backward pass needs.
    None,
    /// A layer saves its input, attention, and the results of matrix products. The backward pass computes cheap
    /// activations again.
    Selective,
    /// A layer saves only its input. Its forward pass runs again in the backward pass.
    Full,
    /// A layer copies everything that the backward pass needs to host memory, and back before its backward pass.
    Offload,
    /// A layer copies its input to host memory, and back before its backward pass, which runs its forward pass again.
    FullOffload,
}

impl CheckpointingKind {
    /// All kinds: those that save on the device, then those that save in host memory.
    pub const ALL: [CheckpointingKind; 5] = [
        CheckpointingKind::None,
        CheckpointingKind::Selective,
        CheckpointingKind::Full,
        CheckpointingKind::Offload,
        CheckpointingKind::FullOffload,
    ];

    /// The kinds that save on the device, in ascending order of recomputation.
    pub const ON_DEVICE: [CheckpointingKind; 3] =
        [CheckpointingKind::None, CheckpointingKind::Selective, CheckpointingKind::Full];

    /// The kind with this name.
    pub fn named(name: &str) -> Option<CheckpointingKind> {
        CheckpointingKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind's name in a scheme's text.
    pub fn name(self) -> &'static str {
        match self {
            CheckpointingKind::None => "none",
            CheckpointingKind::Selective => "selective",
            CheckpointingKind::Full => "full",
            CheckpointingKind::Offload => "offload",
            CheckpointingKind::FullOffload => "full-offload",
        }
    }

    /// Whether a layer saves in host memory.
    pub fn offloads(self) -> bool {
        self != self.on_device()
    }

    /// The kind that saves and computes the same, on the device.
    #[must_use]
    pub fn on_device(self) -> CheckpointingKind {
        match self {
            CheckpointingKind::Offload => CheckpointingKind::None,
            CheckpointingKind::FullOffload => CheckpointingKind::Full,
            kind => kind,
        }
    }
}
