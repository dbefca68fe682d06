//! The split of a model's layers over the stages of a pipeline.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::spec::{ModelShape, Scheme};
use crate::units::{count, whole};

/// The number of layers, the cost of the head, which the last stage computes too, and the stated layers of each stage.
///
/// The embedding only looks rows up, so its cost is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSplit {
    layers: u32,
    head_layers: f64,
    /// Stated lists in ascending order of their number of stages. For other numbers of stages, cost determines the
    /// split.
    stated: Vec<Vec<u32>>,
}

impl LayerSplit {
    /// The split of `layers` layers with a head that costs as much as `head_layers` of them. `head_layers` must be
    /// finite and at least 0; other values are refused with `head_layers`.
    pub fn new(layers: u32, head_layers: f64) -> Result<LayerSplit> {
        if !(head_layers >= 0.0 && head_layers.is_finite()) {
            return Err(Error::HeadLayers { value: head_layers.to_string() });
        }
        Ok(LayerSplit { layers, head_layers, stated: Vec::new() })
    }

    /// The same split with stated lists, each with the layers of every stage. A list applies to pipelines with its
    /// number of stages.
    ///
    /// Every list must have two stages or more, add up to the model's layers, leave no stage empty, and be the only
    /// list with its number of stages. Other lists are refused with `layer_split`.
    pub fn with_stated(self, mut lists: Vec<Vec<u32>>) -> Result<LayerSplit> {
        for (index, list) in lists.iter().enumerate() {
            check(list, self.layers, &lists[..index]).map_err(|why| Error::LayerSplit {
                index,
                value: format!("{list:?}"),
                why,
            })?;
        }
        lists.sort_by_key(Vec::len);
        Ok(LayerSplit { stated: lists, ..self })
    }

    /// The split with a head of cost 0.
    pub fn even(layers: u32) -> LayerSplit {
        LayerSplit { layers, head_layers: 0.0, stated: Vec::new() }
    }

    /// The split of a model. A matrix in any part of the model takes the same operations for each of its parameters.
    pub fn of(model: &ModelShape) -> LayerSplit {
        let layers = u32::try_from(model.fields().num_hidden_layers).unwrap_or(u32::MAX);
        LayerSplit { layers, head_layers: model.head_layers(), stated: Vec::new() }
    }

    /// The stated lists in ascending order of their number of stages.
    pub fn stated(&self) -> &[Vec<u32>] {
        &self.stated
    }

    /// Cost of the head, in layers.
    pub fn head_layers(&self) -> f64 {
        self.head_layers
    }

    /// Number of layers of the model.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// The layers of a stage, counted from 0.
    ///
    /// A stated list for this number of stages takes precedence. Otherwise the last stage has the number of layers that
    /// minimizes the time of the slowest stage, and the other stages split the rest evenly. If the rest does not divide
    /// evenly, later stages have one more layer, because earlier stages hold more micro-batches under 1F1B. A scheme
    /// with more stages than layers is refused with `too_many_stages`.
    pub fn stage(&self, scheme: Scheme, stage: u16) -> Result<Range<u32>> {
        let stages = u32::from(scheme.pp());
        if stages > self.layers {
            return Err(Error::TooManyStages { scheme, stages: scheme.pp(), layers: self.layers });
        }
        if let Ok(list) = self.stated.binary_search_by_key(&usize::from(scheme.pp()), Vec::len) {
            let list = &self.stated[list];
            let start = list[..usize::from(stage)].iter().sum();
            return Ok(start..start + list[usize::from(stage)]);
        }
        let (stage, rest) = (u32::from(stage), self.layers - self.of_last(stages));
        if stage + 1 == stages {
            return Ok(rest..self.layers);
        }
        let bound = |stage: u32| rest * stage / (stages - 1);
        Ok(bound(stage)..bound(stage + 1))
    }

    /// Number of layers of the last stage.
    ///
    /// With fewer layers its time falls and the time of the others rises, so the best number is near the point of equal
    /// times.
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
        // Among equal candidates the largest number wins, so that the other stages hold less of a micro-batch.
        around.rev().min_by(|here, there| slowest(here).total_cmp(&slowest(there))).unwrap_or(most)
    }

    /// Number of layers of each stage.
    pub fn stage_layers(&self, scheme: Scheme) -> Result<Vec<u32>> {
        let of_stage = |stage| self.stage(scheme, stage).map(|layers| layers.end - layers.start);
        (0..scheme.pp()).map(of_stage).collect()
    }

    /// The cost of each stage, in layers.
    pub fn stage_costs(&self, scheme: Scheme) -> Result<Vec<f64>> {
        let mut costs: Vec<f64> = self.stage_layers(scheme)?.into_iter().map(count).collect();
        if let Some(last) = costs.last_mut() {
            *last += self.head_layers;
        }
        Ok(costs)
    }
}

/// Refuses a list that is not a split of the layers, or that repeats the number of stages of an earlier list.
fn check(list: &[u32], layers: u32, earlier: &[Vec<u32>]) -> std::result::Result<(), String> {
    if list.is_empty() || list.contains(&0) {
        return Err("the limit is one layer a stage".into());
    }
    if list.len() == 1 {
        return Err("one stage has all layers, whatever is stated; leave the list out".into());
    }
    if earlier.iter().any(|other| other.len() == list.len()) {
        return Err(format!("another list has {} stages too, the limit is one list for each number", list.len()));
    }
    let sum = list.iter().map(|&count| u64::from(count)).sum::<u64>();
    if sum != u64::from(layers) {
        return Err(format!("these are {sum} layers, the model has {layers}"));
    }
    Ok(())
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
    fn a_costly_head_replaces_layers_of_the_last_stage() {
        assert_eq!(sizes(32, 0.0, 4), [8, 8, 8, 8]);
        assert_eq!(sizes(32, 0.65, 4), [8, 8, 8, 8]);
        // In Qwen2 with 1.5 billion parameters, a vocabulary of 151,936 costs as much as five of the 28 layers.
        assert_eq!(sizes(28, 5.0, 4), [8, 8, 8, 4]);
        assert_eq!(sizes(4, 30.0, 3), [1, 2, 1]);
        assert_eq!(sizes(7, 0.0, 3), [2, 2, 3]);
        assert_eq!(sizes(5, 2.0, 1), [5]);
    }

    #[test]
    fn layers_that_cannot_be_split_are_refused() {
        let deep = Scheme::new(1, 1, 5).unwrap();
        assert_eq!(LayerSplit::even(4).stage(deep, 0).unwrap_err().code(), "scheme_model_mismatch");
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(LayerSplit::new(4, bad).unwrap_err().code(), "argument_invalid");
        }
    }

    #[test]
    fn stated_layers_apply_to_their_number_of_stages_alone() {
        let split = LayerSplit::new(7, 3.0).unwrap().with_stated(vec![vec![1, 5, 1], vec![6, 1]]).unwrap();
        let stages = |pp| {
            let scheme = Scheme::new(2, 1, pp).unwrap();
            (0..pp).map(|stage| split.stage(scheme, stage).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(stages(2), [0..6, 6..7]);
        assert_eq!(stages(3), [0..1, 1..6, 6..7]);
        assert_eq!(stages(1), std::slice::from_ref(&(0..7)));
        let lens: Vec<usize> = stages(4).iter().map(ExactSizeIterator::len).collect();
        assert_eq!(lens, sizes(7, 3.0, 4));
        assert_eq!(split.stage_costs(Scheme::new(1, 1, 3).unwrap()).unwrap(), [1.0, 5.0, 4.0]);
    }

    #[test]
    fn an_invalid_split_is_refused_with_its_position() {
        for (lists, place, why) in [
            (vec![vec![4, 3], vec![7, 0]], "stage_layers[1] = [7, 0]", "one layer a stage"),
            (vec![vec![]], "stage_layers[0] = []", "one layer a stage"),
            (vec![vec![3, 3]], "stage_layers[0] = [3, 3]", "6 layers, the model has 7"),
            (vec![vec![3, 4], vec![7]], "stage_layers[1] = [7]", "one stage has all layers"),
            (vec![vec![u32::MAX, 8]], "stage_layers[0] = [4294967295, 8]", "4294967303 layers"),
            (vec![vec![3, 4], vec![2, 3, 2], vec![4, 3]], "stage_layers[2] = [4, 3]", "2 stages too"),
        ] {
            let error = LayerSplit::even(7).with_stated(lists).unwrap_err();
            let message = error.to_string();
            assert_eq!(error.code(), "scheme_model_mismatch");
            assert!(message.contains(place) && message.contains(why), "{message}");
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
