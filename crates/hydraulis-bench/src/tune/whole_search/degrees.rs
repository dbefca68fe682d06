//! The degrees, the sharding and the checkpointing of a layer, or of embedding and head.

use std::fmt;

/// The part of the model states that each data-parallel rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sharding {
    /// Whole states on each rank.
    None,
    /// Shards of optimizer states and gradients.
    Zero2,
    /// Shards of parameters too.
    Zero3,
}

/// How a layer runs on the ranks of its stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LayerStrategy {
    pub(super) pp: u64,
    pub(super) tp: u64,
    /// Ranks of Ulysses' sequence parallelism; 1 with tensor parallelism.
    pub(super) sp: u64,
    pub(super) dp: u64,
    pub(super) sharding: Sharding,
    /// Whether the backward pass recomputes the activations; false for embedding and head.
    pub(super) recomputes: bool,
}

impl LayerStrategy {
    /// The tensor or sequence degree.
    pub(super) fn split(self) -> u64 {
        self.tp.max(self.sp)
    }

    /// Ranks that share the model states under sharding.
    pub(super) fn shards(self) -> u64 {
        self.dp * self.sp
    }
}

/// Text such as `1-4*-2f-c-sp`: stages, tensor or sequence degree (`*` above 1), data degree, `f` for sharded parameters,
/// `c` for checkpointing, `sp` for sequence parallelism.
impl fmt::Display for LayerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |is: bool, text: &'static str| if is { text } else { "" };
        let star = mark(self.split() > 1, "*");
        let sharded = mark(self.sharding == Sharding::Zero3, "f");
        let (recomputes, sequence) = (mark(self.recomputes, "-c"), mark(self.sp > 1, "-sp"));
        write!(f, "{}-{}{star}-{}{sharded}{recomputes}{sequence}", self.pp, self.split(), self.dp)
    }
}

/// All strategies of a pipeline degree on `world` ranks, with and without recomputation.
pub(super) fn layer_strategies(world: u64, pp: u64, shards_by_default: bool) -> Vec<LayerStrategy> {
    let ranks = world / pp;
    let mut all = Vec::new();
    for split in powers(ranks) {
        let dp = ranks / split;
        let default = if shards_by_default { Sharding::Zero2 } else { Sharding::None };
        let shardings = if dp == 1 { vec![Sharding::None] } else { vec![default, Sharding::Zero3] };
        let degrees = if split == 1 { vec![(1, 1)] } else { vec![(split, 1), (1, split)] };
        for (tp, sp) in degrees {
            for &sharding in &shardings {
                for recomputes in [false, true] {
                    all.push(LayerStrategy { pp, tp, sp, dp, sharding, recomputes });
                }
            }
        }
    }
    all
}

/// Powers of two up to `most`.
pub(super) fn powers(most: u64) -> impl Iterator<Item = u64> {
    (0..u64::BITS).map(|doublings| 1 << doublings).take_while(move |&power| power <= most)
}
