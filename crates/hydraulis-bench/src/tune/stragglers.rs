//! Groups, pipelines, layers and micro-batches on ranks of different speed: Malleus's problem.
//!
//! A tensor-parallel group of `k` ranks takes `alpha(k)` times the slowest of its rates for a layer. A pipeline takes
//! `max_j y_j l_j` for a micro-batch, and the step the greatest `m_i max_j y_ij l_ij` of the pipelines. Each pipeline has
//! at least as many micro-batches as stages, and stage `j` of `S` has room for `(k[-(S - j)] l + embedding) tp / k + extra`
//! megabytes. Ranks may stay idle.
//!
//! Each set of groups is first shared greedily: each group, the fastest first, goes to the pipeline of least speed, and
//! slower ones stay idle one after another. Then all sharings are tried in order, until a stated number of them is spent:
//! settings of few different rates end before, and their plans are the best of the sets.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use hydraulis_core::Millis;
use hydraulis_core::pipeline::{MakespanBuffers, makespan};
use hydraulis_core::tuning::{Stage, StageSplit, share};
use serde::Deserialize;
use serde_json::{Value, json};

use super::layer_choice::whole;
use super::straggler_settings::{File, Inputs, Run, nodes};
use super::{Instance, Solved};

/// Sharings of groups that a search tries; Malleus's own settings need at most a third.
const MOST_SHARINGS: u64 = 300_000;

/// Most ways to share the groups of one kind that are listed.
const MOST_WAYS: u64 = 20_000;

/// Share of the forward in a micro-batch's time.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// The kind of a group: its time of a layer, and its tensor-parallel degree.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    time: f64,
    ranks: usize,
}

pub(super) fn instances(document: &Value) -> serde_json::Result<Vec<Instance>> {
    let file = File::deserialize(document)?;
    let instance = |(place, run): (usize, Run)| {
        let name = if run.ctx.is_empty() { format!("{place}") } else { format!("{} {}", run.ctx, run.setting) };
        let reference = run.topk_objectives.first().copied();
        Instance::new(name, reference, move || Search::run(&run))
    };
    Ok(file.runs.into_iter().enumerate().map(instance).collect())
}

impl Kind {
    fn key(self) -> (u64, usize) {
        (self.time.to_bits(), self.ranks)
    }
}

/// Groups of one node, as sorted kinds.
type Groups = Vec<(u64, usize)>;

struct Search<'a> {
    inputs: &'a Inputs,
    best: Option<Best>,
    /// Sharings that may still be tried.
    left: u64,
    tried: BTreeSet<Groups>,
}

#[derive(Clone, Debug)]
struct Best {
    objective: f64,
    pipelines: Vec<Vec<Kind>>,
    layers: Vec<Vec<u64>>,
    micro_batches: Vec<u64>,
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
        let mut search = Search { inputs, best: None, left: MOST_SHARINGS, tried: BTreeSet::new() };
        let options: Vec<Vec<Groups>> = nodes.iter().map(|rates| search.splits(rates)).collect();
        let sets = search.by_promise(&options);
        for groups in &sets {
            search.placing(groups).place_greedily();
        }
        search.left = MOST_SHARINGS;
        for groups in sets {
            if search.left == 0 || search.best.as_ref().is_some_and(|best| search.floor(&groups) >= best.objective) {
                break;
            }
            search.place(&groups);
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

    /// Time of a layer on a group of this many ranks with this greatest rate.
    fn kind(&self, ranks: usize, rate: f64) -> Option<Kind> {
        let halvings = (self.inputs.tp / ranks).ilog2() as usize;
        Some(Kind { time: self.inputs.hetero_tp_alpha.get(halvings)? * rate, ranks })
    }

    /// The ways to cut a node's ranks into groups of a power of two up to the tensor-parallel degree.
    ///
    /// Within a group only the greatest rate counts, so groups of consecutive ranks by rate contain the best ones. Two equal
    /// groups that fit together into one are no faster apart and need more memory. Whole groups may stay idle later.
    fn splits(&self, rates: &[f64]) -> Vec<Groups> {
        // A node of equal ranks gains nothing from smaller groups: they need more memory and are no faster together.
        let is_even = rates.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_eq());
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
                let is_whole = size == self.inputs.tp;
                let apart = found[end - size].iter().filter(|groups| is_whole || !groups.contains(&kind.key()));
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
        let mut sets: Vec<Groups> = sets.into_iter().collect();
        sets.sort_by(|one, other| self.floor(one).total_cmp(&self.floor(other)).then(one.cmp(other)));
        sets
    }

    /// The sets of the greatest speed, and the fastest ones of each number of groups: fewer groups hold more layers.
    fn most_promising(&self, sets: BTreeSet<Groups>) -> BTreeSet<Groups> {
        const MOST: usize = 500;
        const MOST_OF_A_NUMBER: usize = 8;
        let mut sets: Vec<Groups> = sets.into_iter().collect();
        sets.sort_by(|one, other| self.floor(one).total_cmp(&self.floor(other)).then(one.cmp(other)));
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
    fn work(&self) -> f64 {
        float(self.inputs.layers) * float(self.inputs.mbn)
    }

    /// Places groups on pipelines in every way, or leaves them idle, and keeps the best plan.
    fn place(&mut self, groups: &Groups) {
        if !self.tried.insert(groups.clone()) {
            return;
        }
        let mut placing = self.placing(groups);
        let empty = placing.empty();
        placing.place(0, &empty);
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
        Placing { search: self, kinds, times: BTreeMap::new(), compositions: BTreeMap::new() }
    }

    /// Layers of the stages of a pipeline of these groups, slowest first.
    fn pipeline(&self, stages: &[Kind]) -> Option<StageSplit> {
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

/// The placing of one set of groups.
struct Placing<'a, 'b> {
    search: &'b mut Search<'a>,
    /// Kinds of groups, slowest first, and their number.
    kinds: Vec<(Kind, usize)>,
    /// The split of a pipeline, by its number of groups of each kind.
    times: BTreeMap<Vec<usize>, Option<Rc<StageSplit>>>,
    /// The ways to share a number of groups among the pipelines.
    compositions: BTreeMap<usize, Rc<Vec<Vec<usize>>>>,
}

impl Placing<'_, '_> {
    /// Pipelines without a group.
    fn empty(&self) -> Vec<Vec<usize>> {
        vec![vec![0; self.kinds.len()]; self.search.inputs.dp]
    }

    /// Judges plans that give each group, the fastest first, to the pipeline of least speed: of all groups, and without
    /// the slowest ones.
    fn place_greedily(&mut self) {
        let empty = self.empty();
        let mut fastest_first: Vec<usize> = Vec::new();
        for (kind, &(_, number)) in self.kinds.iter().enumerate().rev() {
            fastest_first.extend(std::iter::repeat_n(kind, number));
        }
        fastest_first.sort_by(|&one, &other| self.kinds[one].0.time.total_cmp(&self.kinds[other].0.time));
        while fastest_first.len() >= empty.len() && self.search.left > 0 {
            let mut pipelines = empty.clone();
            for &kind in &fastest_first {
                let speed = |counts: &Vec<usize>| self.speed(counts);
                let slowest = pipelines.iter_mut().min_by(|one, other| speed(one).total_cmp(&speed(other)));
                slowest.expect("a plan has a pipeline")[kind] += 1;
            }
            self.judge(&pipelines);
            self.search.left -= 1;
            fastest_first.pop();
        }
    }

    /// Tries every number of groups of `kind` and later kinds on each pipeline, as long as the best plan may be beaten.
    fn place(&mut self, kind: usize, pipelines: &[Vec<usize>]) {
        let Some(&(_, number)) = self.kinds.get(kind) else { return self.judge(pipelines) };
        for used in (0..=number).rev() {
            if self.search.left == 0 {
                return;
            }
            let later = self.kinds[kind + 1..].iter().map(|(kind, number)| float(*number as u64) / kind.time);
            let placed = pipelines.iter().map(|counts| self.speed(counts)).sum::<f64>();
            let speed = placed + float(used as u64) / self.kinds[kind].0.time + later.sum::<f64>();
            if !self.may_beat(self.search.work() / speed) {
                break;
            }
            if ways(used, pipelines.len()) > MOST_WAYS {
                continue;
            }
            let all = self.compositions.entry(used).or_insert_with(|| Rc::new(compositions(used, pipelines.len())));
            for shares in Rc::clone(all).iter() {
                // Pipelines are interchangeable: only those in descending order are tried.
                if self.search.left == 0 {
                    return;
                }
                self.search.left -= 1;
                let order = |place: usize| (&pipelines[place][..kind], shares[place]);
                if (1..pipelines.len()).all(|place| order(place - 1) >= order(place)) {
                    let mut next = pipelines.to_vec();
                    next.iter_mut().zip(shares).for_each(|(pipeline, &own)| pipeline[kind] = own);
                    self.place(kind + 1, &next);
                }
            }
        }
    }

    /// Whether an objective is below that of the best plan.
    fn may_beat(&self, objective: f64) -> bool {
        self.search.best.as_ref().is_none_or(|best| objective < best.objective)
    }

    /// Layers per time of a pipeline whose layers can be divided.
    fn speed(&self, counts: &[usize]) -> f64 {
        self.kinds.iter().zip(counts).map(|((kind, _), &count)| float(count as u64) / kind.time).sum()
    }

    /// Keeps the plan of these pipelines if it is the best.
    fn judge(&mut self, pipelines: &[Vec<usize>]) {
        if let Some(best) = &self.search.best {
            // Even with layers divided, the pipelines must take all micro-batches before the best plan ends.
            let layers = float(self.search.inputs.layers);
            let most =
                |counts: &Vec<usize>| (best.objective * self.speed(counts) / layers * (1.0 + 1e-12)).ceil() - 1.0;
            if pipelines.iter().map(most).sum::<f64>() < float(self.search.inputs.mbn) {
                return;
            }
        }
        let splits: Option<Vec<Rc<StageSplit>>> = pipelines.iter().map(|counts| self.split(counts)).collect();
        let Some(splits) = splits else { return };
        let times: Vec<f64> = splits.iter().map(|split| split.time).collect();
        let least: Vec<u64> = splits.iter().map(|split| split.layers.len() as u64).collect();
        let Some((objective, micro_batches)) = share(&times, &least, self.search.inputs.mbn) else { return };
        if self.may_beat(objective) {
            let pipelines = pipelines.iter().map(|counts| self.stages(counts)).collect();
            let layers = splits.iter().map(|split| split.layers.clone()).collect();
            self.search.best = Some(Best { objective, pipelines, layers, micro_batches });
        }
    }

    fn split(&mut self, counts: &[usize]) -> Option<Rc<StageSplit>> {
        if let Some(known) = self.times.get(counts) {
            return known.clone();
        }
        let split = self.search.pipeline(&self.stages(counts)).map(Rc::new);
        self.times.insert(counts.to_vec(), split.clone());
        split
    }

    fn stages(&self, counts: &[usize]) -> Vec<Kind> {
        let kinds = self.kinds.iter().zip(counts);
        kinds.flat_map(|(&(kind, _), &count)| std::iter::repeat_n(kind, count)).collect()
    }
}

/// Groups with one more, in order.
fn with(groups: &Groups, kind: Kind) -> Groups {
    let mut longer = groups.clone();
    longer.push(kind.key());
    longer.sort_unstable();
    longer
}

/// Number of ways to write `total` as an ordered sum of `parts` numbers, as far as it is below a great bound.
fn ways(total: usize, parts: usize) -> u64 {
    let factors = (1..parts as u64).map(|place| (total as u64 + place, place));
    factors.fold(1, |ways, (more, less)| ways.saturating_mul(more) / less)
}

/// All ways to write `total` as an ordered sum of `parts` numbers.
fn compositions(total: usize, parts: usize) -> Vec<Vec<usize>> {
    if parts == 1 {
        return vec![vec![total]];
    }
    (0..=total)
        .flat_map(|own| compositions(total - own, parts - 1).into_iter().map(move |rest| [vec![own], rest].concat()))
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "layers and micro-batches are far below 2^53")]
fn float(x: u64) -> f64 {
    x as f64
}
