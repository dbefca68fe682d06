//! The degrees, the layer plan and the stages of one replica.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, StrategyError};
use crate::spec::{Axis, CheckpointingKind, Degrees, LayerPlan, StageSplit};

/// The degrees `<tp, cp, pp>` of one replica, which runs on tp x cp x pp ranks, and the checkpointing of its layers.
///
/// The text `<tp4,pp2>` leaves out degrees of 1; `<1>` has only degrees of 1. With checkpointing the text is
/// `<tp4,full>` or `<1,selective>`, and `<tp4,full:12/40>` if 12 of the model's 40 layers have it. `<pp2,split:3-9>`
/// states the layers of each stage. The ranks of a stage are consecutive. Tensor ranks are innermost, so that each
/// tensor group is consecutive, and context ranks are around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scheme {
    degrees: Degrees,
    layers: LayerPlan,
    split: StageSplit,
}

impl Scheme {
    /// A scheme with the given degrees, each at least 1, that saves all activations for backward.
    pub fn new(tp: u16, cp: u16, pp: u16) -> Result<Scheme> {
        let degrees = Degrees::new([tp, cp, pp]).ok_or_else(|| {
            let text = format!("<tp{tp},cp{cp},pp{pp}>");
            Error::from(StrategyError::SchemeSyntax { text, why: "a degree is 0".into() })
        })?;
        Ok(Scheme::from_parts(degrees, LayerPlan::KEEP))
    }

    /// A scheme with these degrees and this memory plan of its layers, split over stages by cost.
    pub fn from_parts(degrees: Degrees, layers: LayerPlan) -> Scheme {
        Scheme { degrees, layers, split: StageSplit::BY_COST }
    }

    /// The layers of each stage where the scheme states them.
    pub fn split(self) -> StageSplit {
        self.split
    }

    /// The same degrees and layer plan with another split; none if it is one of another number of stages.
    pub fn with_split(self, split: StageSplit) -> Option<Scheme> {
        let is_for_stages = split.is_by_cost() || split.layers().len() == self.stages();
        is_for_stages.then_some(Scheme { split, ..self })
    }

    /// The degree of each axis.
    pub fn degrees(self) -> Degrees {
        self.degrees
    }

    /// The memory plan of the scheme's layers.
    pub fn layer_plan(self) -> LayerPlan {
        self.layers
    }

    /// The same degrees with one kind of checkpointing in every layer.
    #[must_use]
    pub fn with_checkpointing(self, checkpointing: CheckpointingKind) -> Scheme {
        self.with_layers(LayerPlan::uniform(checkpointing))
    }

    /// The same degrees with another memory plan of the layers.
    #[must_use]
    pub fn with_layers(self, layers: LayerPlan) -> Scheme {
        Scheme { layers, ..self }
    }

    /// Tensor-parallel degree.
    pub fn tp(self) -> u16 {
        self.degrees.of(Axis::Tensor)
    }

    /// Context-parallel degree.
    pub fn cp(self) -> u16 {
        self.degrees.of(Axis::Context)
    }

    /// Pipeline stages.
    pub fn pp(self) -> u16 {
        self.degrees.of(Axis::Pipeline)
    }

    /// Largest number of micro-batches in flight on a stage under 1F1B: one for the stage itself and one for each later
    /// stage.
    pub fn in_flight(self, stage: u16) -> u16 {
        self.pp().saturating_sub(stage)
    }

    /// Number of pipeline stages, as `usize`.
    pub fn stages(self) -> usize {
        usize::from(self.pp())
    }

    /// Index of a tensor rank's slice of the parameters that tensor parallelism splits.
    ///
    /// The function reverses the digits of the rank's number, written in the mixed base of the tensor degree's prime
    /// factors. Neighbours in a narrow group are then far apart in a wide one. Therefore a rank's slice under `<tp4>`
    /// is a part of its slice under `<tp2>` (ranks 0 to 3: quarters 0, 2, 1, 3 of halves 0, 1, 0, 1).
    pub fn tensor_slice(self, tensor_rank: u16) -> u16 {
        let (mut slice, mut place, mut slices) = (0, tensor_rank, self.tp());
        for factor in self.tensor_factors() {
            slices /= factor;
            slice += place % factor * slices;
            place /= factor;
        }
        slice
    }

    /// The prime factors of the tensor degree in ascending order.
    pub(crate) fn tensor_factors(self) -> Vec<u16> {
        let (mut factors, mut rest) = (Vec::new(), self.tp());
        while let Some(least) = (2..=rest).find(|&factor| rest.is_multiple_of(factor)) {
            factors.push(least);
            rest /= least;
        }
        factors
    }

    /// Ranks of one stage.
    pub fn stage_group_ranks(self) -> u32 {
        self.degrees.stage_ranks()
    }

    /// Ranks of the replica.
    pub fn ranks(self) -> u64 {
        self.degrees.ranks()
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}", self.degrees)?;
        if !self.split.is_by_cost() {
            write!(f, ",{}", self.split)?;
        }
        if !self.layers.keeps_activations() {
            write!(f, ",{}", self.layers)?;
        }
        f.write_str(">")
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Scheme> {
        let wrong = |why: &str| Error::from(StrategyError::SchemeSyntax { text: text.into(), why: why.into() });
        let inner = text.trim().strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
        let inner = inner.ok_or_else(|| wrong("it is not written between < and >"))?;
        let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
        let is_of_layers = |part: &&str| part.contains(':') || CheckpointingKind::named(part).is_some();
        let (degrees, layers) = parts.split_at(parts.iter().position(is_of_layers).unwrap_or(parts.len()));
        let degrees = Degrees::parse(degrees).map_err(|why| wrong(&why))?;
        let (split, layers) =
            match layers.split_first().and_then(|(first, rest)| Some((StageSplit::parse(first)?, rest))) {
                Some((split, rest)) => (split.map_err(|why| wrong(&why))?, rest),
                None => (StageSplit::BY_COST, layers),
            };
        let scheme = Scheme::from_parts(degrees, LayerPlan::parse(layers).map_err(|why| wrong(&why))?);
        scheme.with_split(split).ok_or_else(|| wrong("its split is one of another number of stages"))
    }
}

impl TryFrom<String> for Scheme {
    type Error = Error;
    fn try_from(text: String) -> Result<Scheme> {
        text.parse()
    }
}

impl From<Scheme> for String {
    fn from(scheme: Scheme) -> String {
        scheme.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let plain = ["<1>", "<tp4>", "<cp8>", "<pp3>", "<tp16,pp2>", "<tp4,cp2>", "<tp2,cp3,pp4>"];
        for text in plain.into_iter().chain(["<1,full>", "<1,selective>", "<tp4,full>", "<tp2,cp3,pp4,selective>"]) {
            assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
        }
        for text in ["<1,full:1/2>", "<tp4,full:12/40>", "<tp2,pp4,selective:7/60>", "<cp2,selective,full:39/40>"] {
            assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
        }
        for text in ["<pp2,split:3-9>", "<tp2,pp3,split:1-2-255,full:12/40>", "<pp2,split:1-3,selective,full:1/4>"] {
            assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
        }
        assert_eq!("<tp2, none, full:3/8>".parse::<Scheme>().unwrap().to_string(), "<tp2,full:3/8>");
        assert_eq!("<pp2, cp3,tp4>".parse::<Scheme>().unwrap().to_string(), "<tp4,cp3,pp2>");
        assert_eq!("<pp2, none>".parse::<Scheme>().unwrap().to_string(), "<pp2>");
    }

    #[test]
    fn checkpointing_distinguishes_schemes() {
        let [plain, full]: [Scheme; 2] = ["<tp2>", "<tp2,full>"].map(|text| text.parse().unwrap());
        assert_ne!(plain, full);
        assert_eq!(plain.with_checkpointing(CheckpointingKind::Full), full);
        assert_eq!((full.layer_plan().kind(), full.ranks()), (Some(CheckpointingKind::Full), plain.ranks()));
    }

    #[test]
    fn all_degrees_count_as_ranks() {
        let scheme: Scheme = "<tp2,cp3,pp4>".parse().unwrap();
        assert_eq!((scheme.stage_group_ranks(), scheme.ranks(), scheme.stages()), (6, 24, 4));
    }

    #[test]
    fn another_text_is_refused_by_name() {
        let degrees = ["", "tp4", "<>", "<tp0>", "<cp0>", "<tp4,tp2>", "<dp2>", "<tp>", "<tp70000>", "<2>", "<1,tp2>"];
        for text in degrees.into_iter().chain(["<full>", "<full,tp2>", "<tp2,full,full>", "<tp2,some>", "<tp2,Full>"]) {
            assert_eq!(text.parse::<Scheme>().unwrap_err().code(), "strategy_invalid", "{text}");
        }
        for text in [
            "<tp2,full:0/40>",
            "<tp2,full:40/40>",
            "<tp2,none:3/40>",
            "<tp2,full,selective:3/40>",
            "<tp2,full,full:3/40>",
            "<tp2,full:3>",
            "<tp2,full:-1/8>",
            "<tp2,some:3/8>",
            "<tp2,full:3/8,full>",
            "<tp2,none,selective:3/8,full:2/8>",
            "<tp2,full:3/70000>",
            "<pp2,split:3-3-3>",
            "<tp2,split:3-3>",
            "<pp2,full,split:3-3>",
            "<pp2,split:3-3,split:3-3>",
        ] {
            assert_eq!(text.parse::<Scheme>().unwrap_err().code(), "strategy_invalid", "{text}");
        }
    }
}
