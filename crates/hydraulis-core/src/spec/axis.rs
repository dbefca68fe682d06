//! The axes of parallelism inside one replica.

/// One axis along which a replica is split.
///
/// A new axis needs one more entry here and in [`Axis::ALL`]. The layout of parameters and the runtime define its
/// meaning.
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
    /// Every axis in the order of a scheme's text. The first axis is innermost in the order of a replica's ranks.
    pub const ALL: [Axis; 3] = [Axis::Tensor, Axis::Context, Axis::Pipeline];

    /// The axis's name in a scheme's text.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tensor => "tp",
            Axis::Context => "cp",
            Axis::Pipeline => "pp",
        }
    }

    /// The axis's index in [`Axis::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
