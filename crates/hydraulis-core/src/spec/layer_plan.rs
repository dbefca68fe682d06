//! The layers of a replica that compute activations a second time, or save them in host memory.

use std::fmt;
use std::ops::Range;

use crate::spec::CheckpointingKind;

/// The checkpointing of each layer of a model: one kind, or two kinds in stated numbers of layers.
///
/// The text `full:12/40` is said of a model of 40 layers, of which 12 have `full` checkpointing and the others none;
/// `selective,full:12/40` leaves `selective` to the others. The second kind recomputes more than the first, or saves
/// in host memory, which the first does not.
///
/// The layers of the second kind are spread evenly over the model: layer `i` of `n` is one of these `k` layers if `i k /
/// n` and `(i + 1) k / n`, rounded down, differ. Stages of equal length therefore differ by at most one such layer, and
/// by none if the number of stages divides `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerPlan {
    usual: CheckpointingKind,
    /// The second kind; equal to the first in a uniform plan.
    other: CheckpointingKind,
    /// Number of layers of the second kind; 0 in a uniform plan.
    number: u16,
    /// Number of layers of the model; 1 in a uniform plan, which suits every model.
    layers: u16,
}

impl LayerPlan {
    /// The plan that saves all activations for backward.
    pub const KEEP: LayerPlan = LayerPlan::uniform(CheckpointingKind::None);

    /// The plan with one kind of checkpointing in every layer.
    pub const fn uniform(kind: CheckpointingKind) -> LayerPlan {
        LayerPlan { usual: kind, other: kind, number: 0, layers: 1 }
    }

    /// The plan with `number` of the model's `layers` layers under the second kind and the others under the first; none
    /// unless both kinds have a layer, the second comes later in the order of kinds, and the first saves on the device.
    pub fn mixed(kinds: [CheckpointingKind; 2], number: u16, layers: u16) -> Option<LayerPlan> {
        let [usual, other] = kinds;
        (usual < other && !usual.offloads() && 0 < number && number < layers).then_some(LayerPlan {
            usual,
            other,
            number,
            layers,
        })
    }

    /// The kind of every layer; none if the layers have two kinds.
    pub fn kind(self) -> Option<CheckpointingKind> {
        (self.usual == self.other).then_some(self.usual)
    }

    /// The first and the second kind, which are equal in a uniform plan.
    pub fn kinds(self) -> [CheckpointingKind; 2] {
        [self.usual, self.other]
    }

    /// The share of the model's layers under the second kind.
    pub fn share(self) -> f64 {
        f64::from(self.number) / f64::from(self.layers)
    }

    /// Number of layers of the model; none for a uniform plan, which suits every model.
    pub fn layers(self) -> Option<u16> {
        self.kind().is_none().then_some(self.layers)
    }

    /// The kind of one of the model's layers.
    pub fn of_layer(self, layer: u32) -> CheckpointingKind {
        if self.number_in(layer..layer + 1) == 0 { self.usual } else { self.other }
    }

    /// Number of layers of the second kind among these layers of the model.
    pub fn number_in(self, layers: Range<u32>) -> u32 {
        let (number, of) = (u64::from(self.number), u64::from(self.layers));
        let before = |layer: u32| u64::from(layer) * number / of;
        u32::try_from(before(layers.end) - before(layers.start)).expect("no more than the layers")
    }

    /// Whether a layer saves its activations in host memory.
    pub fn offloads(self) -> bool {
        self.other.offloads()
    }

    /// Whether the first of a stage's layers offloads.
    pub fn offloads_first(self, layers: &Range<u32>) -> bool {
        self.of_layer(layers.start).offloads()
    }

    /// Number of a stage's layers that save in host memory something that the stage has not received: the input of a
    /// later stage's first layer stays on the device.
    pub fn offloading_in(self, layers: Range<u32>, is_first: bool) -> u32 {
        let saves_received_alone =
            !is_first && self.other == CheckpointingKind::FullOffload && self.offloads_first(&layers);
        let offloading = layers.filter(|&layer| self.of_layer(layer).offloads()).count();
        u32::try_from(offloading).unwrap_or(u32::MAX).saturating_sub(u32::from(saves_received_alone))
    }

    /// Number of these layers that are copied: all but the last one of a last stage, whose backward comes next.
    pub fn copied_in(self, layers: Range<u32>, is_first: bool, is_last: bool) -> u32 {
        self.offloading_in(layers, is_first).saturating_sub(u32::from(is_last))
    }

    /// Whether every layer saves all its activations on the device.
    pub fn keeps_activations(self) -> bool {
        self == LayerPlan::KEEP
    }

    /// The plan with this text, in the parts between its commas; without a part all activations are saved. The error
    /// gives the cause of a refusal.
    pub fn parse(parts: &[&str]) -> Result<LayerPlan, String> {
        let (usual, mixed) = match *parts {
            [] => return Ok(LayerPlan::KEEP),
            [only] => match CheckpointingKind::named(only) {
                Some(kind) => return Ok(LayerPlan::uniform(kind)),
                None => (CheckpointingKind::None, only),
            },
            [usual, mixed] => match CheckpointingKind::named(usual) {
                Some(kind) => (kind, mixed),
                None => return Err(format!("'{usual}' is no kind of checkpointing")),
            },
            _ => return Err("it has more than two kinds of checkpointing".into()),
        };
        let numbers = mixed.split_once(':').and_then(|(name, numbers)| {
            let (number, layers) = numbers.split_once('/')?;
            Some((CheckpointingKind::named(name)?, number.parse().ok()?, layers.parse().ok()?))
        });
        let Some((other, number, layers)) = numbers else {
            return Err(format!("'{mixed}' is no kind of checkpointing with its layers, such as full:12/40"));
        };
        LayerPlan::mixed([usual, other], number, layers).ok_or_else(|| {
            format!("'{mixed}' must give {usual} to some layers and to others a kind that recomputes more or offloads")
        })
    }
}

impl fmt::Display for LayerPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind().is_some() {
            return write!(f, "{}", self.usual);
        }
        if self.usual != CheckpointingKind::None {
            write!(f, "{},", self.usual)?;
        }
        write!(f, "{}:{}/{}", self.other, self.number, self.layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layers_of_the_second_kind_are_spread() {
        let plan = LayerPlan::parse(&["selective", "full:3/8"]).unwrap();
        let kinds: Vec<&str> = (0..8).map(|layer| plan.of_layer(layer).name()).collect();
        let (s, f) = ("selective", "full");
        assert_eq!(kinds, [s, s, f, s, s, f, s, f]);
        assert_eq!((plan.share(), plan.kind(), plan.layers()), (0.375, None, Some(8)));
        let uniform = LayerPlan::uniform(CheckpointingKind::Full);
        assert_eq!((uniform.of_layer(7), uniform.number_in(0..9)), (CheckpointingKind::Full, 0));
    }

    /// Three stages of two layers: those that save their inputs in host memory do not save a received one there.
    #[test]
    fn copied_layers_are_counted_by_their_stage() {
        let counts = |plan: &[&str]| {
            let plan = LayerPlan::parse(plan).unwrap();
            [0, 1, 2].map(|stage: u32| {
                let layers = 2 * stage..2 * stage + 2;
                let offloading = plan.offloading_in(layers.clone(), stage == 0);
                (offloading, plan.copied_in(layers, stage == 0, stage == 2))
            })
        };
        assert_eq!(counts(&["full-offload"]), [(2, 2), (1, 1), (1, 0)]);
        assert_eq!(counts(&["offload"]), [(2, 2), (2, 2), (2, 1)]);
        // The second layer of each stage.
        assert_eq!(counts(&["full", "full-offload:3/6"]), [(1, 1), (1, 1), (1, 0)]);
        assert_eq!(counts(&["full"]), [(0, 0); 3]);
        assert!(LayerPlan::parse(&["offload", "full-offload:3/6"]).is_err());
    }

    proptest! {
        #[test]
        fn equal_stages_differ_by_at_most_one_layer(stages in 1..9_u32, each in 1..20_u32, number in 1..160_u16) {
            let layers = stages * each;
            let kinds = [CheckpointingKind::None, CheckpointingKind::Full];
            let plan = LayerPlan::mixed(kinds, number, u16::try_from(layers).unwrap());
            prop_assume!(plan.is_some());
            let plan = plan.unwrap();
            let of: Vec<u32> = (0..stages).map(|stage| plan.number_in(stage * each..(stage + 1) * each)).collect();
            let apart = of.iter().max().unwrap() - of.iter().min().unwrap();
            prop_assert!(apart <= u32::from(!u32::from(number).is_multiple_of(stages)), "{of:?}");
            prop_assert_eq!(of.iter().sum::<u32>(), u32::from(number));
            let each_layer = (0..layers).filter(|&layer| plan.of_layer(layer) == CheckpointingKind::Full);
            prop_assert_eq!(each_layer.count(), usize::from(number));
        }
    }
}
