//! The split of a model's layers over the stages of a pipeline.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::spec::{ModelShape, Scheme, StageSplit};
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
    /// The split of `layers` layers with a head that costs as much as `head_layers` of them. No layers are refused with
    /// `model_invalid`, and a `head_layers` that is not finite or below 0 with `argument_invalid`.
    pub fn new(layers: u32, head_layers: f64) -> Result<LayerSplit> {
        if !(head_layers >= 0.0 && head_layers.is_finite()) {
            return Err(Error::HeadLayers { value: head_layers.to_string() });
        }
        if layers == 0 {
            let (field, limit) = ("num_hidden_layers", "from 1 to 4,294,967,295".into());
            return Err(Error::ModelShape { field, value: "0".into(), limit });
        }
        Ok(LayerSplit { layers, head_layers, stated: Vec::new() })
    }

    /// The same split with stated lists, each with the layers of every stage. A list applies to pipelines with its
    /// number of stages.
    ///
    /// Every list must have two stages or more, add up to the model's layers, leave no stage empty, and be the only
    /// list with its number of stages. Other lists are refused with `scheme_model_mismatch`.
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
    /// The scheme's own split takes precedence, then a stated list for this number of stages. Otherwise the last stage has the number of layers that
    /// minimizes the time of the slowest stage, and the other stages split the rest evenly. If the rest does not divide
    /// evenly, later stages have one more layer, because earlier stages hold more micro-batches under 1F1B. A scheme
    /// with more stages than layers is refused with `scheme_model_mismatch`, and one that splits another number of layers too.
    pub fn stage(&self, scheme: Scheme, stage: u16) -> Result<Range<u32>> {
        let stages = u32::from(scheme.pp());
        if stages > self.layers {
            return Err(Error::TooManyStages { scheme, stages: scheme.pp(), layers: self.layers });
        }
        if !scheme.split().is_by_cost() {
            return self.stage_of_scheme(scheme, usize::from(stage));
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
        Ok(share(rest, stage, stages - 1)..share(rest, stage + 1, stages - 1))
    }

    /// The layers of a stage of a scheme with a split of its own.
    fn stage_of_scheme(&self, scheme: Scheme, stage: usize) -> Result<Range<u32>> {
        let list = scheme.split().layers();
        let given: u32 = list.iter().sum();
        if given != self.layers {
            return Err(Error::OtherSplit { scheme, given, layers: self.layers });
        }
        let start = list[..stage].iter().sum();
        Ok(start..start + list[stage])
    }

    /// The scheme with splits that give fewer layers to stages on slow ranks: to one stage, to the first ones or to the
    /// last ones. For each of these places there are at most `number` splits, between the usual number of layers and a
    /// quarter of it; the other stages share the rest so that the slowest of them is as short as it can be. Empty for a scheme without
    /// stages or with a split of its own.
    pub fn splits_for_slow_stages(&self, scheme: Scheme, number: u32) -> Result<Vec<Scheme>> {
        let usual = self.stage_layers(scheme)?;
        if usual.len() < 2 || !scheme.split().is_by_cost() {
            return Ok(Vec::new());
        }
        let (stages, mut schemes) = (usual.len(), Vec::new());
        let single = (0..stages).map(|stage| stage..stage + 1);
        let first = (2..stages).map(|end| 0..end);
        let last = (1..stages - 1).map(|start| start..stages);
        for slow in single.chain(first).chain(last) {
            for step in 1..=number {
                let list = self.with_slow(&usual, &slow, f64::from(step) * 0.75 / f64::from(number));
                let split = StageSplit::of_layers(&list).and_then(|split| scheme.with_split(split));
                schemes.extend(split.filter(|_| list != usual));
            }
        }
        schemes.sort_unstable();
        schemes.dedup();
        Ok(schemes)
    }

    /// The layers of each stage if the `slow` ones give this share of theirs to the others.
    fn with_slow(&self, usual: &[u32], slow: &Range<usize>, share: f64) -> Vec<u32> {
        let kept = |layers: u32| {
            let given = u32::try_from(whole(f64::from(layers) * share + 0.5)).unwrap_or(u32::MAX);
            layers.saturating_sub(given).max(1)
        };
        let layers = usual.iter().enumerate();
        let mut list: Vec<u32> =
            layers.map(|(stage, &own)| if slow.contains(&stage) { kept(own) } else { own }).collect();
        let freed = usual.iter().sum::<u32>() - list.iter().sum::<u32>();
        for _ in 0..freed {
            let head = |stage: usize| if stage + 1 == usual.len() { self.head_layers } else { 0.0 };
            // The stage's time with the layer, relative to its usual time.
            let time =
                |stage: usize| (f64::from(list[stage] + 1) + head(stage)) / (f64::from(usual[stage]) + head(stage));
            // Earlier stages hold more micro-batches under 1F1B, so the last of equal stages takes the layer.
            let others = (0..usual.len()).filter(|stage| !slow.contains(stage)).rev();
            let shortest = others.min_by(|&one, &other| time(one).total_cmp(&time(other)));
            list[shortest.expect("some stage is not slow")] += 1;
        }
        list
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

/// The layers of the first `part` of `parts` equal parts. It is at most `layers`, so the conversion is exact.
fn share(layers: u32, part: u32, parts: u32) -> u32 {
    u32::try_from(u64::from(layers) * u64::from(part) / u64::from(parts)).unwrap_or(layers)
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
    fn the_stages_of_many_layers_have_all_of_them() {
        let sizes = sizes(1 << 24, 0.0, 1000);
        assert_eq!(sizes.iter().sum::<usize>(), 1 << 24);
        assert!(sizes.iter().all(|&size| (16_777..=16_778).contains(&size)));
    }

    #[test]
    fn layers_that_cannot_be_split_are_refused() {
        assert_eq!(LayerSplit::new(0, 0.0).unwrap_err().code(), "model_invalid");
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

    #[test]
    fn slow_stages_give_layers_to_the_others() {
        let of = |layers, head, scheme: &str, number| {
            let split = LayerSplit::new(layers, head).unwrap();
            let schemes = split.splits_for_slow_stages(scheme.parse().unwrap(), number).unwrap();
            schemes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(4, 0.0, "<pp2>", 1), ["<pp2,split:1-3>", "<pp2,split:3-1>"]);
        assert_eq!(of(16, 0.0, "<tp2,pp2,full>", 2).len(), 4);
        let three = of(12, 0.0, "<pp3>", 1);
        assert_eq!(
            three,
            ["<pp3,split:1-1-10>", "<pp3,split:1-5-6>", "<pp3,split:5-1-6>", "<pp3,split:5-6-1>", "<pp3,split:10-1-1>"]
        );
        // The last of two stages computes a head of three layers.
        assert_eq!(of(13, 3.0, "<pp2>", 1), ["<pp2,split:2-11>", "<pp2,split:12-1>"]);
        assert!(of(8, 0.0, "<tp2>", 3).is_empty() && of(8, 0.0, "<pp2,split:3-5>", 3).is_empty());
        assert!(of(2, 0.0, "<pp2>", 3).is_empty());
    }

    #[test]
    fn a_schemes_own_split_precedes_stated_lists() {
        let split = LayerSplit::even(7).with_stated(vec![vec![3, 4]]).unwrap();
        let layers = |scheme: &str| split.stage_layers(scheme.parse().unwrap());
        assert_eq!((layers("<pp2>").unwrap(), layers("<pp2,split:6-1>").unwrap()), (vec![3, 4], vec![6, 1]));
        let error = layers("<pp2,split:6-2>").unwrap_err();
        assert_eq!(error.code(), "scheme_model_mismatch");
        assert!(error.to_string().contains("splits 8 layers and the model has 7"), "{error}");
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
