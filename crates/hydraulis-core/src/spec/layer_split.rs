//! How the layers of a model are shared out over the stages of a pipeline.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::spec::{ModelShape, Scheme};
use crate::units::{count, whole};

/// Layers, and what the head costs beside them, which the last stage computes too.
///
/// The embedding only looks rows up, so it counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSplit {
    layers: u32,
    head_layers: f64,
}

impl LayerSplit {
    /// Of so many layers, if the head costs as much as `head_layers` of them; refused with `head_layers` unless that is 0 or
    /// more and finite.
    pub fn new(layers: u32, head_layers: f64) -> Result<LayerSplit> {
        if !(head_layers >= 0.0 && head_layers.is_finite()) {
            return Err(Error::HeadLayers { value: head_layers.to_string() });
        }
        Ok(LayerSplit { layers, head_layers })
    }

    /// Where the head costs nothing.
    pub fn even(layers: u32) -> LayerSplit {
        LayerSplit { layers, head_layers: 0.0 }
    }

    /// Of a model: a matrix takes the same operations for each of its parameters, wherever it stands.
    pub fn of(model: &ModelShape) -> LayerSplit {
        let layers = u32::try_from(model.fields().num_hidden_layers).unwrap_or(u32::MAX);
        LayerSplit { layers, head_layers: model.head_layers() }
    }

    /// Layers of the model.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// The layers of a stage, counted from 0.
    ///
    /// The last stage has so many that the slowest stage is as fast as can be, the others share the rest evenly; where they do not
    /// divide, later ones have one more, since under 1F1B earlier ones hold more micro-batches. Refused with `too_many_stages`
    /// where there are fewer layers than stages.
    pub fn stage(&self, scheme: Scheme, stage: u16) -> Result<Range<u32>> {
        let stages = u32::from(scheme.pp());
        if stages > self.layers {
            return Err(Error::TooManyStages { scheme, stages: scheme.pp(), layers: self.layers });
        }
        let (stage, rest) = (u32::from(stage), self.layers - self.of_last(stages));
        if stage + 1 == stages {
            return Ok(rest..self.layers);
        }
        let bound = |stage: u32| rest * stage / (stages - 1);
        Ok(bound(stage)..bound(stage + 1))
    }

    /// Layers of the last stage.
    ///
    /// With fewer its time falls and that of the others rises, so the best number is next to where both are equal.
    fn of_last(&self, stages: u32) -> u32 {
        let most = self.layers - (stages - 1);
        if stages == 1 {
            return most;
        }
        let equal = (f64::from(self.layers) - self.head_layers * f64::from(stages - 1)) / f64::from(stages);
        let near = u32::try_from(whole(equal.max(0.0))).unwrap_or(u32::MAX).min(most);
        let slowest = |last: &u32| {
            let others = f64::from((self.layers - last).div_ceil(stages - 1));
            others.max(f64::from(*last) + self.head_layers)
        };
        let around = (near..=near.saturating_add(2)).map(|last| last.clamp(1, most));
        // Of equal ones the last, which has the most layers: so the others hold less of a micro-batch.
        around.rev().min_by(|here, there| slowest(here).total_cmp(&slowest(there))).unwrap_or(most)
    }

    /// The cost of each stage, in layers.
    pub fn stage_costs(&self, scheme: Scheme) -> Result<Vec<f64>> {
        let cost = |stage: u16| {
            let head = if stage + 1 == scheme.pp() { self.head_layers } else { 0.0 };
            self.stage(scheme, stage).map(|layers| count(layers.len()) + head)
        };
        (0..scheme.pp()).map(cost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(layers: u32, head_layers: f64, stages: u16) -> Vec<usize> {
        let split = LayerSplit::new(layers, head_layers).unwrap();
        let scheme = Scheme::new(1, 1, stages).unwrap();
        (0..stages).map(|stage| split.stage(scheme, stage).unwrap().len()).collect()
    }

    #[test]
    fn a_head_that_costs_layers_takes_their_place() {
        assert_eq!(sizes(32, 0.0, 4), [8, 8, 8, 8]);
        assert_eq!(sizes(32, 0.65, 4), [8, 8, 8, 8]);
        // Qwen2 of 1.5 billion parameters: a vocabulary of 151,936 costs five of 28 layers.
        assert_eq!(sizes(28, 5.0, 4), [8, 8, 8, 4]);
        assert_eq!(sizes(4, 30.0, 3), [1, 2, 1]);
        assert_eq!(sizes(7, 0.0, 3), [2, 2, 3]);
        assert_eq!(sizes(5, 2.0, 1), [5]);
    }

    #[test]
    fn what_cannot_be_shared_out_is_refused() {
        let deep = Scheme::new(1, 1, 5).unwrap();
        assert_eq!(LayerSplit::even(4).stage(deep, 0).unwrap_err().code(), "too_many_stages");
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(LayerSplit::new(4, bad).unwrap_err().code(), "head_layers");
        }
    }

    proptest! {
        #[test]
        fn no_split_has_a_faster_slowest_stage(
            (layers, stages) in (1..=40_u32).prop_flat_map(|layers| {
                (Just(layers), 1..=u16::try_from(layers.min(9)).unwrap())
            }),
            head in prop_oneof![Just(0.0), 0.0..12.0_f64],
        ) {
            let sizes = sizes(layers, head, stages);
            prop_assert_eq!(sizes.iter().sum::<usize>(), layers as usize);
            prop_assert!(sizes.iter().all(|&size| size > 0), "{:?}", sizes);
            let split = LayerSplit::new(layers, head).unwrap();
            let costs = split.stage_costs(Scheme::new(1, 1, stages).unwrap()).unwrap();
            let slowest = costs.iter().copied().fold(0.0, f64::max);
            let others = u32::from(stages) - 1;
            for last in 1..=layers - others {
                let rest = if others == 0 { 0 } else { (layers - last).div_ceil(others) };
                if others > 0 || last == layers {
                    prop_assert!(slowest <= f64::from(rest).max(f64::from(last) + head), "{:?} and {}", sizes, last);
                }
            }
        }
    }
}
