//! The axes of parallelism inside one replica.

/// One axis along which a replica is cut.
///
/// A new axis is one more entry here and in [`Axis::ALL`]; its meaning belongs to the layout of parameters and to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Ranks that split each layer's parameters.
    Tensor,
    /// Ranks that split each sequence's tokens.
    Context,
    /// Stages that split the layers.
    Pipeline,
}

impl Axis {
    /// Number of axes.
    pub const COUNT: usize = Axis::ALL.len();
    /// Every axis, as schemes are written and innermost first in the order of a replica's ranks.
    pub const ALL: [Axis; 3] = [Axis::Tensor, Axis::Context, Axis::Pipeline];

    /// The axis's name in a scheme's text.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tensor => "tp",
            Axis::Context => "cp",
            Axis::Pipeline => "pp",
        }
    }

    /// The axis's place in [`Axis::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
