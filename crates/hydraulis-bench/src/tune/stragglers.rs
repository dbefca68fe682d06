//! Groups, pipelines, layers and micro-batches on ranks of different speed: Malleus's problem.
//!
//! A tensor-parallel group of `k` ranks takes `alpha(k)` times the slowest of its rates for a layer. A pipeline takes
//! `max_j y_j l_j` for a micro-batch, and the step the greatest `m_i max_j y_ij l_ij` of the pipelines. Each pipeline has
//! at least as many micro-batches as stages, and stage `j` of `S` has room for `(k[-(S - j)] l + embedding) tp / k + extra`
//! megabytes. Ranks may stay idle.
//!
//! Sets of groups without room for all layers are left out (`straggler_sets`). Each other one is first shared greedily, then in every way (`straggler_placing`): first the sets of groups as wide as
//! the ranks allow, then all sets that may beat their best plan. Equal groups may be faster apart: on two pipelines, or where
//! twice the ranks take more than half the time. A search ends after a stated amount of work with the best plan so far. Small
//! settings end before, and their plans are the best ones; a plan of a search that spends it all is not proven to be the best.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use hydraulis_core::Millis;
use hydraulis_core::pipeline::{MakespanBuffers, makespan};
use hydraulis_core::tuning::{Stage, StageSplit};
use serde_json::{Value, json};

use super::layer_choice::whole;
use super::reading::{entries, read};
use super::straggler_placing::Placing;
use super::straggler_sets::Groups;
use super::straggler_settings::{Inputs, Run, nodes};
use super::{Instance, Solved};

/// Operations for the greedy plans of either kind of sets: about 10 ms.
const GREEDY_WORK: u64 = 2_000_000;

/// Operations for the sharings in every way of either kind of sets: about 25 ms.
const WORK: u64 = 5_000_000;

/// A set of groups takes at most this part of the operations that are left, so that other sets have some.
const SHARES: u64 = 8;

/// Most layers: far above any model, and each of them is a whole number in floating point.
const MOST_LAYERS: u64 = 1_000_000;

/// Share of the forward in a micro-batch's time.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// The kind of a group: its time of a layer, and its tensor-parallel degree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kind {
    pub(super) time: f64,
    pub(super) ranks: usize,
}

pub(super) fn instances(document: &Value) -> serde_json::Result<Vec<Instance>> {
    let instance = |(place, entry): (usize, &Value)| {
        let run: Run = match read(entry) {
            Ok(run) => run,
            Err(error) => return Instance::refused(format!("{place}"), error),
        };
        let name = if run.ctx.is_empty() { format!("{place}") } else { format!("{} {}", run.ctx, run.setting) };
        let reference = run.topk_objectives.first().copied();
        Instance::new(name, reference, move || Search::run(&run))
    };
    Ok(entries(document, "runs")?.iter().enumerate().map(instance).collect())
}

impl Kind {
    /// The kind as a value with an order: times first.
    pub(super) fn key(self) -> (u64, usize) {
        (self.time.to_bits(), self.ranks)
    }
}

pub(super) struct Search<'a> {
    pub(super) inputs: &'a Inputs,
    pub(super) best: Option<Best>,
    /// Operations that may still be spent.
    pub(super) left: u64,
    tried: BTreeSet<Groups>,
    /// The ways to share a number of groups among the pipelines.
    pub(super) compositions: BTreeMap<usize, Rc<Vec<Vec<usize>>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Best {
    pub(super) objective: f64,
    pub(super) pipelines: Vec<Vec<Kind>>,
    pub(super) layers: Vec<Vec<u64>>,
    pub(super) micro_batches: Vec<u64>,
}

/// Time of a step under 1F1B, by the core's own makespan: that of its slowest pipeline.
///
/// The objective leaves out the time in which a pipeline fills and drains, which this one has.
fn step_1f1b(times: &[Vec<f64>], layers: &[Vec<u64>], micro_batches: &[u64]) -> f64 {
    let pipelines = times.iter().zip(layers).zip(micro_batches);
    let ends = pipelines.map(|((times, layers), &number)| {
        let stages: Vec<f64> = times.iter().zip(layers).map(|(time, &layers)| time * float(layers)).collect();
        let each = vec![Millis(1.0); usize::try_from(number).expect("at most a million")];
        makespan(&each, &stages, FORWARD_SHARE, &mut MakespanBuffers::default()).0
    });
    ends.fold(0.0, f64::max)
}

impl<'a> Search<'a> {
    fn run(run: &'a Run) -> Solved {
        let inputs = &run.inputs;
        let nodes = nodes(inputs)?;
        if inputs.layers > MOST_LAYERS {
            return Err("too_many_layers".into());
        }
        let mut search = Search::new(inputs);
        search.search(&nodes);
        let best = search.best.ok_or("memory_too_small")?;
        let ranks = |pipeline: &Vec<Kind>| pipeline.iter().map(|kind| (kind.time, kind.ranks)).collect::<Vec<_>>();
        let pipelines: Vec<_> = best.pipelines.iter().map(ranks).collect();
        let times: Vec<Vec<f64>> =
            best.pipelines.iter().map(|pipeline| pipeline.iter().map(|kind| kind.time).collect()).collect();
        let solution = json!({
            "groups": pipelines,
            "layers": best.layers,
            "micro_batches": best.micro_batches,
            "step_1f1b": step_1f1b(&times, &best.layers, &best.micro_batches),
            "reference_step_1f1b": run
                .reference_plan()
                .map(|plan| step_1f1b(&plan.times, &plan.layers, &plan.micro_batches)),
        });
        Ok((best.objective, solution))
    }

    pub(super) fn new(inputs: &'a Inputs) -> Search<'a> {
        Search { inputs, best: None, left: WORK, tried: BTreeSet::new(), compositions: BTreeMap::new() }
    }

    /// Counts operations.
    pub(super) fn spend(&mut self, operations: usize) {
        self.left = self.left.saturating_sub(operations as u64);
    }

    /// Searches for the best plan on the ranks of these nodes.
    fn search(&mut self, nodes: &[Vec<f64>]) {
        let (ranks, tp) = (nodes.iter().map(Vec::len).sum::<usize>(), self.inputs.tp);
        // Ranks hold the most layers in whole groups, even across nodes.
        let widest = std::iter::repeat_n(tp, ranks / tp).chain([ranks % tp]).collect();
        if !self.inputs.may_hold(widest) {
            return;
        }
        for with_equal_groups in [false, true] {
            let mut sets = self.inputs.sets(nodes, with_equal_groups);
            sets.retain(|groups| !self.tried.contains(groups));
            self.left = GREEDY_WORK;
            // The fewest groups hold the most layers, so they have a plan if any set has.
            let fewest = sets.iter().min_by_key(|groups| groups.len());
            for groups in fewest.into_iter().chain(&sets) {
                if self.left == 0 || self.is_slower(groups) {
                    break;
                }
                self.placing(groups).place_greedily();
            }
            self.left = WORK;
            for groups in sets {
                if self.left == 0 || self.is_slower(&groups) {
                    break;
                }
                let later = self.left - self.left.div_ceil(SHARES);
                self.left -= later;
                self.placing(&groups).place_in_every_way();
                if self.left > 0 {
                    self.tried.insert(groups);
                }
                self.left += later;
            }
        }
    }

    /// Whether no plan on these groups beats the best one.
    fn is_slower(&self, groups: &Groups) -> bool {
        self.best.as_ref().is_some_and(|best| self.inputs.floor(groups) >= best.objective)
    }

    /// The placing of these groups, by kind.
    fn placing(&mut self, groups: &Groups) -> Placing<'a, '_> {
        let mut kinds: Vec<(Kind, usize)> = Vec::new();
        for &(time, ranks) in groups.iter().rev() {
            let kind = Kind { time: f64::from_bits(time), ranks };
            match kinds.last_mut() {
                Some((last, number)) if *last == kind => *number += 1,
                _ => kinds.push((kind, 1)),
            }
        }
        Placing::new(self, kinds)
    }

    /// Layers of the stages of a pipeline of these groups, slowest first; none without room for them, or for the embedding.
    pub(super) fn pipeline(&self, stages: &[Kind]) -> Option<StageSplit> {
        let inputs = self.inputs;
        let first = inputs.memory_k.len().checked_sub(stages.len())?;
        let stage = |(place, kind): (usize, &Kind)| {
            let is_end = place == 0 || place + 1 == stages.len();
            let embedding = if is_end { inputs.memory_embedding } else { 0.0 };
            let left = inputs.room() / float((inputs.tp / kind.ranks) as u64) - embedding;
            (left >= 0.0).then(|| Stage { time: kind.time, most: whole(left / inputs.memory_k[first + place]) })
        };
        let stages: Option<Vec<Stage>> = stages.iter().enumerate().map(stage).collect();
        StageSplit::fastest(&stages?, inputs.layers)
    }
}

#[expect(clippy::cast_precision_loss, reason = "layers and micro-batches are far below 2^53")]
pub(super) fn float(x: u64) -> f64 {
    x as f64
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::straggler_placing::tests::least;
    use super::super::straggler_sets::with;
    use super::*;

    fn inputs(document: &Value) -> Inputs {
        let mut all = json!({
            "dp": 2, "tp": 4, "layers": 8, "mbn": 8, "hetero_tp_alpha": [1.0, 2.0, 4.0], "memory_k": [10, 10, 10, 10],
            "memory_embedding": 0, "memory_extra": 0, "memory_bound": 10_000, "memory_safe_gap": 0,
        });
        all.as_object_mut().unwrap().extend(document.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    /// Objective of the plan of a search.
    fn found(inputs: &Inputs) -> Option<f64> {
        let mut search = Search::new(inputs);
        search.search(&nodes(inputs).unwrap());
        search.best.map(|best| best.objective)
    }

    /// Every choice of disjoint groups of these ranks, which may stay idle.
    fn choices(search: &Search, ranks: &[f64]) -> Vec<Vec<Kind>> {
        let Some((&first, rest)) = ranks.split_first() else { return vec![Vec::new()] };
        let mut all = choices(search, rest);
        for others in 0..1_usize << rest.len() {
            let (mut rate, mut left) = (first, Vec::new());
            for (place, &own) in rest.iter().enumerate() {
                if others >> place & 1 == 1 { rate = rate.max(own) } else { left.push(own) }
            }
            let number = ranks.len() - left.len();
            if number.is_power_of_two() && number <= search.inputs.tp {
                let kind = search.inputs.kind(number, rate).unwrap();
                all.extend(choices(search, &left).into_iter().map(|groups| [vec![kind], groups].concat()));
            }
        }
        all
    }

    /// The least objective of all plans on ranks of these nodes.
    fn by_trying(inputs: &Inputs) -> Option<f64> {
        let search = Search::new(inputs);
        let mut sets: BTreeSet<Groups> = BTreeSet::from([Vec::new()]);
        for rates in nodes(inputs).unwrap() {
            let own = choices(&search, &rates);
            let longer = |set: &Groups| -> Vec<Groups> {
                own.iter().map(|groups| groups.iter().fold(set.clone(), |set, &kind| with(&set, kind))).collect()
            };
            sets = sets.iter().flat_map(longer).collect();
        }
        let objectives = sets.iter().filter_map(|groups| {
            let mut kinds: Vec<Kind> =
                groups.iter().map(|&(time, ranks)| Kind { time: f64::from_bits(time), ranks }).collect();
            kinds.reverse();
            least(inputs, &kinds, &mut vec![Vec::new(); inputs.dp])
        });
        objectives.min_by(f64::total_cmp)
    }

    /// Two pipelines of half of a node's ranks are faster than one of all of them and one of a rank that is 8 times as slow.
    #[test]
    fn equal_groups_of_a_node_may_be_apart() {
        let devices = json!({"0": 1, "1": 1, "2": 1, "3": 1, "8": 8});
        let inputs = inputs(&json!({"layers": 32, "mbn": 16, "used_devices_sr": devices}));
        assert_eq!(found(&inputs), Some(512.0));
    }

    #[test]
    fn a_great_setting_has_a_plan() {
        let rate = |device: u32| 1.0 + f64::from(device * 7_919 % 512) / 64.0;
        let devices: serde_json::Map<String, Value> =
            (0..512).map(|device| (device.to_string(), json!(rate(device)))).collect();
        let memory: Vec<u64> = (1..=16).rev().collect();
        let document = json!({"dp": 8, "layers": 80, "mbn": 512, "memory_k": memory, "used_devices_sr": devices});
        assert!(found(&inputs(&document)).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn no_other_plan_is_better(
            rates in vec(prop_oneof![Just(0.6), Just(1.0), Just(1.5), Just(3.0), Just(8.0)], 1..6),
            threshold in prop_oneof![Just(1.0), Just(1.2), Just(2.5)],
            first_node in 0..6_usize,
            dp in 1..3_usize,
            tp in prop_oneof![Just(1), Just(2), Just(4)],
            layers in 1..10_u64,
            mbn in 2..12_u64,
            factor in prop_oneof![Just(1.7), Just(2.0), Just(2.1)],
            memory in 20..200_u64,
        ) {
            prop_assume!(rates.len() >= dp);
            let device = |place: usize| if place < first_node { place } else { place + 8 };
            let devices: serde_json::Map<String, Value> =
                rates.iter().enumerate().map(|(place, rate)| (device(place).to_string(), json!(rate))).collect();
            let alpha: Vec<f64> = vec![1.0, factor, factor * factor];
            let inputs = inputs(&json!({
                "dp": dp, "tp": tp, "layers": layers, "mbn": mbn, "hetero_tp_alpha": alpha, "memory_k": [13, 12, 11, 10],
                "memory_embedding": 3, "memory_extra": 1, "memory_bound": memory, "used_devices_sr": devices,
                "straggler_threshold": threshold,
            }));
            let (found, best) = (found(&inputs), by_trying(&inputs));
            // Products in another order differ in their last bits.
            let is_equal = found.zip(best).is_some_and(|(found, best)| (found / best - 1.0).abs() < 1e-9);
            prop_assert!(is_equal || found == best, "{found:?} {best:?}");
        }
    }
}
