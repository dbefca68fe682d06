//! The best plan of a problem: degrees, sharding and recomputation of each layer, stages, micro-batches and batch.

use hydraulis_core::tuning::{Goal, LayerMixes, Mix, MixOption, PipelineSplit, PipelineStage};

use super::cost::{Costs, Setting};
use super::degrees::{LayerStrategy, layer_strategies, powers};
use super::profile::{Profile, float};
use super::refine::{Choices, searched};
use crate::tune::layer_choice::whole;

/// Widest tensor, sequence and pipeline degrees of the reference.
pub(super) const WIDEST: u64 = 8;

/// Which of tensor and sequence parallelism layers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splits {
    Tensor,
    Sequence,
    Both,
}

/// The part of the space with one pipeline degree and one buffer for tensor groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) pp: u64,
    /// Greatest tensor or sequence degree; the buffer is as large as this tensor degree needs.
    pub(super) widest: u64,
    pub(super) splits: Splits,
}

/// A plan and its time.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) batch: u64,
    pub(super) chunks: u64,
    pub(super) part: Part,
    pub(super) outside: LayerStrategy,
    /// Strategies of each stage with their numbers of layers.
    pub(super) stages: Vec<Vec<(LayerStrategy, usize)>>,
    /// Megabytes of each stage's ranks.
    pub(super) stage_mb: Vec<u64>,
    /// Seconds of a micro-batch on each stage.
    pub(super) stage_s: Vec<f64>,
    /// Seconds of a step.
    pub(super) time: f64,
}

impl Plan {
    /// Samples a second.
    pub(super) fn throughput(&self) -> f64 {
        float(self.batch) / self.time
    }
}

/// The choices of a search.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub(super) batches: Vec<u64>,
    /// Micro-batches of a step; none for every divisor of the batch.
    pub(super) chunks: Option<u64>,
    /// The only part; none for all.
    pub(super) part: Option<Part>,
    /// Whether all layers, embedding and head have one strategy.
    pub(super) is_uniform: bool,
}

/// The plan of greatest throughput; none if no plan fits.
pub(super) fn search(profile: &Profile, setting: &Setting, space: &Space) -> Option<Plan> {
    let mut best: Option<Plan> = None;
    for &batch in &space.batches {
        for chunks in divisors(batch).into_iter().filter(|&chunks| space.chunks.is_none_or(|only| only == chunks)) {
            let costs = Costs { profile, setting, batch, chunks };
            for part in space.part.map_or_else(|| parts(&costs), |only| vec![only]) {
                let found = Solver::new(&costs, part).and_then(|solver| {
                    let fastest = best.as_ref().map_or(0.0, Plan::throughput);
                    if space.is_uniform { solver.uniform() } else { solver.mixed(fastest) }
                });
                let is_better = |plan: &Plan| best.as_ref().is_none_or(|best| plan.throughput() > best.throughput());
                best = found.filter(is_better).or(best);
            }
        }
    }
    best
}

/// The divisors of a number, ascending.
fn divisors(number: u64) -> Vec<u64> {
    let up_to_root = (1..=number.isqrt()).filter(|least| number.is_multiple_of(*least));
    let mut divisors: Vec<u64> = up_to_root.flat_map(|least| [least, number / least]).collect();
    divisors.sort_unstable();
    divisors.dedup();
    divisors
}

/// All parts of the space. A part with both kinds of splits has every plan of the one with tensor parallelism alone.
fn parts(costs: &Costs) -> Vec<Part> {
    let setting = costs.setting;
    let layers = setting.layers as u64;
    let mut parts = Vec::new();
    for pp in powers(setting.world.min(WIDEST)).filter(|&pp| pp <= costs.chunks && pp <= layers) {
        let ranks = setting.world / pp;
        let most = ranks.min(WIDEST);
        // Data degrees above a micro-batch's samples are impossible, so narrower layers are too.
        let least = (ranks / most_data(costs, pp)).min(most);
        parts.push(Part { pp, widest: most, splits: Splits::Sequence });
        parts.extend(powers(most).filter(|&tp| tp >= least).map(|widest| Part { pp, widest, splits: Splits::Both }));
    }
    parts
}

/// Greatest data degree: one sample of a micro-batch on each rank.
fn most_data(costs: &Costs, pp: u64) -> u64 {
    (costs.batch / costs.chunks).min(costs.setting.world / pp).max(1)
}

/// The options of one part of the space.
struct Solver<'a> {
    costs: &'a Costs<'a>,
    part: Part,
    layers: Vec<LayerStrategy>,
    /// For each stage, the memory and the times of a layer under each strategy.
    options: Vec<Vec<MixOption>>,
    outside: Vec<Outside>,
}

/// Embedding and head under one strategy.
struct Outside {
    strategy: LayerStrategy,
    times: Vec<f64>,
    /// Memory of each stage that is left for layers.
    limits: Vec<u64>,
}

impl<'a> Solver<'a> {
    /// None if no strategy of embedding and head fits.
    fn new(costs: &'a Costs<'a>, part: Part) -> Option<Solver<'a>> {
        let setting = costs.setting;
        let most_data = most_data(costs, part.pp);
        let is_allowed = |strategy: &LayerStrategy| {
            let kind = match part.splits {
                Splits::Tensor => strategy.sp == 1,
                Splits::Sequence => strategy.tp == 1,
                Splits::Both => true,
            };
            // Ranks have equal samples: the reference drops the others from the time, but not from the throughput.
            let is_shared = (costs.batch / costs.chunks).is_multiple_of(strategy.dp);
            kind && strategy.split() <= part.widest && strategy.dp <= most_data && is_shared
        };
        let all = layer_strategies(setting.world, part.pp, setting.shards_by_default).into_iter().filter(is_allowed);
        let all: Vec<LayerStrategy> = all.collect();
        let buffer = if part.splits == Splits::Sequence { 0.0 } else { costs.buffer_mb(part.pp, part.widest) };
        let room = setting.usable_mb().checked_sub(whole(buffer))?;
        let fits = |&strategy: &LayerStrategy| {
            let memory = costs.outside_mb(strategy)?;
            let limits = memory.into_iter().map(|mb| room.checked_sub(whole(mb.ceil()))).collect::<Option<_>>()?;
            Some(Outside { strategy, times: costs.outside_times(strategy)?, limits })
        };
        let outside: Vec<Outside> = all.iter().filter(|strategy| !strategy.recomputes).filter_map(fits).collect();
        let priced = |stage: u64| -> Vec<Option<MixOption>> {
            let option = |&strategy: &LayerStrategy| {
                let times = costs.layer_times(strategy)?;
                let memory = whole(costs.layer_mb(strategy, stage)?.ceil());
                Some(MixOption { memory, time: times.alone, last_time: times.synced })
            };
            all.iter().map(option).collect()
        };
        let stages: Vec<Vec<Option<MixOption>>> = (0..part.pp).map(priced).collect();
        // Whether a strategy is in the profile does not depend on the stage.
        let is_known: Vec<bool> = stages.first()?.iter().map(Option::is_some).collect();
        let layers = all.iter().zip(&is_known).filter_map(|(&strategy, &known)| known.then_some(strategy)).collect();
        let options = stages.into_iter().map(|stage| stage.into_iter().flatten().collect()).collect();
        (!outside.is_empty()).then_some(Solver { costs, part, layers, options, outside })
    }

    /// The best plan whose layers, embedding and head have one strategy, with the layers split evenly.
    fn uniform(&self) -> Option<Plan> {
        let split = even(self.costs.setting.layers, self.options.len());
        let plans = self.layers.iter().enumerate().filter_map(|(place, strategy)| {
            let outside = self
                .outside
                .iter()
                .find(|outside| outside.strategy == LayerStrategy { recomputes: false, ..*strategy })?;
            let stages: Option<Vec<Chosen>> = split
                .iter()
                .zip(&self.options)
                .zip(&outside.limits)
                .map(|((&layers, options), &limit)| {
                    let mixes = LayerMixes::new(&options[place..=place], layers, limit);
                    let mix = *mixes.within(layers, limit).first()?;
                    Some(Chosen { mix, counts: vec![(*strategy, layers)] })
                })
                .collect();
            Some(self.plan(outside, &stages?))
        });
        plans.min_by(|one, other| one.time.total_cmp(&other.time))
    }

    /// The best plan that is faster than `throughput`: exact for one stage, otherwise the best of the balanced split, the
    /// even one, and those that may beat both, each with improved mixes.
    fn mixed(&self, throughput: f64) -> Option<Plan> {
        let (layers, stages) = (self.costs.setting.layers, self.options.len());
        let widest = |stage: usize| self.outside.iter().map(|outside| outside.limits[stage]).max().unwrap_or_default();
        if self.fastest_possible() * throughput >= float(self.costs.batch) {
            return None;
        }
        let mixes: Vec<LayerMixes> = match &self.options[..] {
            [only] => vec![self.of_one_stage(only, widest(0), throughput)],
            all => {
                let most = layers.checked_sub(stages - 1)?;
                all.iter().enumerate().map(|(stage, options)| LayerMixes::new(options, most, widest(stage))).collect()
            }
        };
        let plans = self.outside.iter().filter_map(|outside| {
            let given = mixes.iter().zip(&outside.limits).zip(&outside.times);
            let given: Vec<PipelineStage> =
                given.map(|((mixes, &limit), &time)| PipelineStage { mixes, limit, time }).collect();
            let split = self.best_split(&given, throughput)?;
            let chosen: Vec<Chosen> = mixes
                .iter()
                .zip(split)
                .map(|(mixes, (layers, mix))| {
                    let counts = self.layers.iter().copied().zip(mixes.counts(layers, &mix));
                    Chosen { mix, counts: counts.filter(|(_, layers)| *layers > 0).collect() }
                })
                .collect();
            Some(self.plan(outside, &chosen))
        });
        plans.min_by(|one, other| one.time.total_cmp(&other.time))
    }

    /// The mixes of all layers on one stage that may be faster than `throughput` and than plans that are quickly found.
    ///
    /// A step takes as long as all micro-batches without the reduction of gradients, or as all but one and the layers of
    /// one with it.
    fn of_one_stage(&self, options: &[MixOption], limit: u64, throughput: f64) -> LayerMixes {
        let layers = self.costs.setting.layers;
        let chunks = float(self.costs.chunks);
        let by_time = |option: &MixOption| MixOption { last_time: option.time, ..*option };
        let by_last_time = |option: &MixOption| MixOption { time: option.last_time, ..*option };
        let mut most = float(self.costs.batch) / throughput;
        for one_time in [options.iter().map(by_time).collect::<Vec<_>>(), options.iter().map(by_last_time).collect()] {
            let mixes = LayerMixes::new(&one_time, layers, limit);
            for outside in &self.outside {
                let fastest = mixes.within(layers, outside.limits[0]).last();
                let counts = fastest.map(|mix| mixes.counts(layers, mix)).unwrap_or_default();
                let sum = |time: &dyn Fn(&MixOption) -> f64| -> f64 {
                    counts.iter().zip(options).map(|(&layers, option)| float(layers as u64) * time(option)).sum()
                };
                if fastest.is_some() {
                    let alone = sum(&|option| option.time) + outside.times[0];
                    most = most.min(self.step(&[alone], &[sum(&|option| option.last_time)]));
                }
            }
        }
        // Rounding in another order of the sums.
        let most = most * (1.0 + 1e-9);
        let outside = self.outside.iter().map(|outside| outside.times[0]).fold(f64::INFINITY, f64::min);
        let goals = [
            Goal { time: chunks, last_time: 0.0, most: most - chunks * outside },
            Goal { time: chunks - 1.0, last_time: 1.0, most: most - (chunks - 1.0) * outside },
        ];
        LayerMixes::reaching(options, layers, limit, &goals)
    }

    /// No step is faster: all layers take their fastest strategy, whatever its memory, on stages that take equally long.
    fn fastest_possible(&self) -> f64 {
        let layer = self.options.iter().flatten().map(|option| option.time).fold(f64::INFINITY, f64::min);
        let all = float(self.costs.setting.layers as u64) * layer;
        let chunks = float(self.costs.chunks);
        if self.part.pp == 1 { all * chunks } else { all * ((chunks - 1.0) / float(self.part.pp)).max(1.0) }
    }

    /// The best split of the layers among those that are tried; a slower one than `throughput` is not improved in every way.
    fn best_split(&self, stages: &[PipelineStage], throughput: f64) -> Option<Vec<(usize, Mix)>> {
        let layers = self.costs.setting.layers;
        let choices = Choices::new(stages, layers);
        let step = |alone: &[f64], synced: &[f64]| self.step(alone, synced);
        if stages.len() == 1 {
            return choices.best(&[layers], &step);
        }
        let balanced = PipelineSplit::fastest(stages, layers, self.costs.chunks)?.layers;
        let starts = [balanced, even(layers, stages.len())];
        let most = float(self.costs.batch) / throughput;
        searched(&choices, &starts, float(self.costs.chunks), most, &step)
    }

    /// The reference's seconds of a step; a middle stage that is slower than both ends counts for every micro-batch too.
    fn step(&self, alone: &[f64], synced: &[f64]) -> f64 {
        let ends = alone[0].max(alone[alone.len() - 1]);
        let middle = alone.iter().fold(ends, |slowest, &stage| slowest.max(stage));
        self.costs.step(alone, synced) + (middle - ends) * (float(self.costs.chunks) - 1.0)
    }

    fn plan(&self, outside: &Outside, stages: &[Chosen]) -> Plan {
        let usable = self.costs.setting.usable_mb();
        let alone: Vec<f64> = stages.iter().zip(&outside.times).map(|(stage, time)| stage.mix.time + time).collect();
        let synced: Vec<f64> = stages.iter().map(|stage| stage.mix.last_time).collect();
        Plan {
            batch: self.costs.batch,
            chunks: self.costs.chunks,
            part: self.part,
            outside: outside.strategy,
            stage_mb: stages
                .iter()
                .zip(&outside.limits)
                .map(|(stage, limit)| usable - limit + stage.mix.memory)
                .collect(),
            stages: stages.iter().map(|stage| stage.counts.clone()).collect(),
            time: self.step(&alone, &synced),
            stage_s: alone,
        }
    }
}

/// The mix of a stage, by strategies.
struct Chosen {
    mix: Mix,
    counts: Vec<(LayerStrategy, usize)>,
}

/// The reference's split: as many layers on each stage, and the remainder on the last.
fn even(layers: usize, stages: usize) -> Vec<usize> {
    let each = layers / stages;
    let mut split = vec![each; stages];
    split[stages - 1] = layers - each * (stages - 1);
    split
}

#[cfg(test)]
mod tests {
    use super::super::cost::tests::{document, profile, setting};
    use super::*;

    #[test]
    fn divisors_ascend() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert_eq!(divisors(1_000_000_000).len(), 100);
    }

    #[test]
    fn ranks_share_a_micro_batch_equally() {
        let profile = profile(&document());
        let setting = Setting { memory_mb: 200 * 1_024, ..setting() };
        for batch in [7, 12, 36] {
            let space = Space { batches: vec![batch], chunks: Some(1), part: None, is_uniform: false };
            let plan = search(&profile, &setting, &space).unwrap();
            let strategies = plan.stages.iter().flatten().map(|(strategy, _)| strategy).chain([&plan.outside]);
            assert!(strategies.into_iter().all(|strategy| batch.is_multiple_of(strategy.dp)), "{plan:?}");
        }
    }

    #[test]
    fn more_memory_never_makes_a_pipeline_slower() {
        let profile = profile(&document());
        let part = Some(Part { pp: 4, widest: 2, splits: Splits::Tensor });
        let space = Space { batches: vec![64], chunks: Some(64), part, is_uniform: false };
        let throughput = |gigabytes: u64| {
            let setting = Setting { memory_mb: gigabytes * 1_024, ..setting() };
            search(&profile, &setting, &space).map_or(0.0, |plan| plan.throughput())
        };
        let all: Vec<f64> = (36..60).map(throughput).collect();
        assert!(all.is_sorted(), "{all:?}");
    }
}
