//! Groups, pipelines, layers and micro-batches on ranks of different speed: Malleus's problem.
//!
//! A tensor-parallel group of `k` ranks takes `alpha(k)` times the slowest of its rates for a layer. A pipeline takes
//! `max_j y_j l_j` for a micro-batch, and the step the greatest `m_i max_j y_ij l_ij` of the pipelines. Each pipeline has
//! at least as many micro-batches as stages, and stage `j` of `S` has room for `(k[-(S - j)] l + embedding) tp / k + extra`
//! megabytes. Ranks may stay idle.
//!
//! Each set of groups is first shared greedily, then in every way (`straggler_placing`), until a stated amount of work is
//! spent: settings of few different rates end before, and their plans are the best of the sets.

use std::collections::{BTreeMap, BTreeSet};

use hydraulis_core::Millis;
use hydraulis_core::pipeline::{MakespanBuffers, makespan};
use hydraulis_core::tuning::{Stage, StageSplit};
use serde_json::{Value, json};

use super::layer_choice::whole;
use super::reading::{entries, read};
use super::straggler_placing::Placing;
use super::straggler_settings::{Inputs, Run, nodes};
use super::{Instance, Solved};

/// Sharings of groups that a search tries.
const MOST_SHARINGS: u64 = 120_000;

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

/// Groups of one node, as sorted kinds.
type Groups = Vec<(u64, usize)>;

pub(super) struct Search<'a> {
    pub(super) inputs: &'a Inputs,
    pub(super) best: Option<Best>,
    /// Sharings that may still be tried.
    pub(super) left: u64,
    tried: BTreeSet<Groups>,
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
        let mut search = Search::new(inputs);
        search.search(&nodes, false);
        if search.best.is_none() {
            search.search(&nodes, true);
        }
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
        Search { inputs, best: None, left: MOST_SHARINGS, tried: BTreeSet::new() }
    }

    /// Searches for the best plan on the ranks of these nodes.
    fn search(&mut self, nodes: &[Vec<f64>], with_equal_groups: bool) {
        let options: Vec<Vec<Groups>> = nodes.iter().map(|rates| self.splits(rates, with_equal_groups)).collect();
        let sets = self.by_promise(&options);
        self.left = MOST_SHARINGS;
        for groups in &sets {
            self.placing(groups).place_greedily();
        }
        self.left = MOST_SHARINGS;
        for groups in sets {
            if self.left == 0 || self.best.as_ref().is_some_and(|best| self.floor(&groups) >= best.objective) {
                break;
            }
            self.place(&groups);
        }
    }

    /// Time of a layer on a group of this many ranks with this greatest rate.
    fn kind(&self, ranks: usize, rate: f64) -> Option<Kind> {
        let halvings = (self.inputs.tp / ranks).ilog2() as usize;
        Some(Kind { time: self.inputs.hetero_tp_alpha.get(halvings)? * rate, ranks })
    }

    /// The ways to cut a node's ranks into groups of a power of two up to the tensor-parallel degree.
    ///
    /// Within a group only the greatest rate counts, so groups of consecutive ranks by rate contain the best ones. Two equal
    /// groups that fit together into one need more memory apart, and are left out unless they are asked for: more pipelines
    /// than whole groups need them. Whole groups may stay idle later.
    fn splits(&self, rates: &[f64], with_equal_groups: bool) -> Vec<Groups> {
        // A node of equal ranks has whole groups.
        let is_even = !with_equal_groups && rates.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq());
        if let (true, Some(kind)) =
            (is_even && rates.len().is_multiple_of(self.inputs.tp), self.kind(self.inputs.tp, rates[0]))
        {
            return vec![vec![kind.key(); rates.len() / self.inputs.tp]];
        }
        let mut found: Vec<BTreeSet<Groups>> = vec![BTreeSet::new(); rates.len() + 1];
        found[0].insert(Vec::new());
        for end in 1..=rates.len() {
            let sizes = (0..).map(|power| 1_usize << power).take_while(|&size| size <= self.inputs.tp && size <= end);
            for size in sizes {
                // Rates ascend, so the last rank of a group is its slowest.
                let Some(kind) = self.kind(size, rates[end - 1]) else { continue };
                let is_any = with_equal_groups || size == self.inputs.tp;
                let apart = found[end - size].iter().filter(|groups| is_any || !groups.contains(&kind.key()));
                let longer: Vec<Groups> = apart.map(|groups| with(groups, kind)).collect();
                found[end].extend(longer);
            }
        }
        found.pop().unwrap_or_default().into_iter().collect()
    }

    /// Sets of groups of all nodes, those with the least floor first.
    fn by_promise(&self, nodes: &[Vec<Groups>]) -> Vec<Groups> {
        let mut sets: BTreeSet<Groups> = BTreeSet::from([Vec::new()]);
        for node in nodes {
            let mut longer = BTreeSet::new();
            for set in &sets {
                for groups in node {
                    let mut all = [set.clone(), groups.clone()].concat();
                    all.sort_unstable();
                    longer.insert(all);
                }
            }
            sets = self.most_promising(longer);
        }
        self.by_floor(sets)
    }

    fn by_floor(&self, sets: BTreeSet<Groups>) -> Vec<Groups> {
        let mut sets: Vec<(f64, Groups)> = sets.into_iter().map(|groups| (self.floor(&groups), groups)).collect();
        sets.sort_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
        sets.into_iter().map(|(_, groups)| groups).collect()
    }

    /// The sets of the greatest speed, and the fastest ones of each number of groups: fewer groups hold more layers.
    fn most_promising(&self, sets: BTreeSet<Groups>) -> BTreeSet<Groups> {
        const MOST: usize = 500;
        const MOST_OF_A_NUMBER: usize = 8;
        let mut sets = self.by_floor(sets);
        let later = sets.split_off(sets.len().min(MOST));
        let mut kept: BTreeMap<usize, usize> = BTreeMap::new();
        for set in later {
            let of_number = kept.entry(set.len()).or_default();
            *of_number += 1;
            if *of_number <= MOST_OF_A_NUMBER {
                sets.push(set);
            }
        }
        sets.into_iter().collect()
    }

    /// No plan on these groups ends earlier: all work over all speeds.
    fn floor(&self, groups: &Groups) -> f64 {
        self.work() / groups.iter().map(|&(time, _)| 1.0 / f64::from_bits(time)).sum::<f64>()
    }

    /// Layers of all micro-batches.
    pub(super) fn work(&self) -> f64 {
        float(self.inputs.layers) * float(self.inputs.mbn)
    }

    /// Places groups on pipelines in every way, or leaves them idle, and keeps the best plan.
    fn place(&mut self, groups: &Groups) {
        if !self.tried.insert(groups.clone()) {
            return;
        }
        self.placing(groups).place_in_every_way();
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

    /// Layers of the stages of a pipeline of these groups, slowest first.
    pub(super) fn pipeline(&self, stages: &[Kind]) -> Option<StageSplit> {
        let inputs = self.inputs;
        let first = inputs.memory_k.len().checked_sub(stages.len())?;
        let room = inputs.memory_bound - inputs.memory_safe_gap - inputs.memory_extra;
        let stage = |(place, kind): (usize, &Kind)| {
            let is_end = place == 0 || place + 1 == stages.len();
            let embedding = if is_end { inputs.memory_embedding } else { 0.0 };
            let share = float((inputs.tp / kind.ranks) as u64);
            let most = whole(((room / share - embedding) / inputs.memory_k[first + place]).max(0.0));
            Stage { time: kind.time, most }
        };
        StageSplit::fastest(&stages.iter().enumerate().map(stage).collect::<Vec<_>>(), inputs.layers)
    }
}

/// Groups with one more, in order.
fn with(groups: &Groups, kind: Kind) -> Groups {
    let mut longer = groups.clone();
    longer.push(kind.key());
    longer.sort_unstable();
    longer
}

#[expect(clippy::cast_precision_loss, reason = "layers and micro-batches are far below 2^53")]
pub(super) fn float(x: u64) -> f64 {
    x as f64
}
