//! Layers over the stages of a pipeline, and their options, so that one step ends earliest.
//!
//! With `n` micro-batches that all take as long, 1F1B ends after the sum of all stages' times and `n - 1` times the
//! slowest stage's. Galvatron-BMW (arXiv 2307.02031) balances this time and memory by moving one layer at a time; here
//! the slowest stage's time is enumerated, and a dynamic program over stages finds the least sum below it.

use crate::tuning::{LayerMixes, Mix};
use crate::units::count;

/// A stage: the mixes that its layers may take, and its part that no layer option changes.
#[derive(Clone, Copy, Debug)]
pub struct PipelineStage<'a> {
    /// The mixes of the stage's layers.
    pub mixes: &'a LayerMixes,
    /// Memory for the layers, in the unit of the mixes.
    pub limit: u64,
    /// Time of a micro-batch outside of the layers, such as the head's.
    pub time: f64,
}

/// The layers and the mix of each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineSplit {
    /// Time of all micro-batches.
    pub time: f64,
    /// Time of one micro-batch on each stage.
    pub stage_times: Vec<f64>,
    /// Layers of each stage, at least one.
    pub layers: Vec<usize>,
    /// The mix of each stage's layers.
    pub mixes: Vec<Mix>,
}

/// Times that differ by less than this share are equal; then memory decides.
const SAME_TIME: f64 = 1e-12;

impl PipelineSplit {
    /// The split of least time within every stage's memory; none if the layers do not fit, or are fewer than the stages.
    ///
    /// Among equal times the split is taken whose fullest stage uses the smallest share of its memory.
    pub fn fastest(stages: &[PipelineStage], layers: usize, micro_batches: u64) -> Option<PipelineSplit> {
        let program = Program::new(stages, layers);
        let more = count(micro_batches.saturating_sub(1));
        let least = program.ends(f64::INFINITY)?.sum;
        let mut best: Option<(f64, f64, f64)> = None;
        for slowest in program.times() {
            // No split with this slowest stage, nor any later one, is faster: its sum is at least the least one.
            if best.is_some_and(|(time, ..)| exceeds(least + more * slowest, time)) {
                break;
            }
            let Some(end) = program.ends(slowest) else { continue };
            let time = end.sum + more * slowest;
            let is_better = |(other, share, _): (f64, f64, f64)| precedes((time, end.share), (other, share));
            if best.is_none_or(is_better) {
                best = Some((time, end.share, slowest));
            }
        }
        let (time, _, slowest) = best?;
        Some(program.split(time, slowest))
    }
}

fn exceeds(time: f64, other: f64) -> bool {
    time > other * (1.0 + SAME_TIME)
}

/// Whether one time and share of memory come before another.
fn precedes(one: (f64, f64), other: (f64, f64)) -> bool {
    exceeds(other.0, one.0) || (!exceeds(one.0, other.0) && one.1 < other.1)
}

/// The fastest mix of some layers on a stage.
#[derive(Clone, Copy, Debug)]
struct Fastest {
    /// Time of a micro-batch on the stage.
    time: f64,
    /// Share of the stage's memory that the layers use.
    share: f64,
    mix: Mix,
}

/// The first stages with some layers: the least sum of their times.
#[derive(Clone, Copy, Debug)]
struct Cell {
    sum: f64,
    /// The fullest stage's share of its memory.
    share: f64,
    /// Layers of the last of these stages.
    own: usize,
}

/// The dynamic program over stages and layers.
struct Program {
    layers: usize,
    /// The fastest mix of each stage, from one layer on; a list ends where memory does.
    fastest: Vec<Vec<Fastest>>,
}

impl Program {
    fn new(stages: &[PipelineStage], layers: usize) -> Program {
        let fastest = |stage: &PipelineStage| {
            let of_layers = |own: usize| {
                let mixes = stage.mixes.within(own, stage.limit).iter();
                let mix = mixes.min_by(|one, other| one.time.total_cmp(&other.time))?;
                let share = count(mix.memory) / count(stage.limit.max(1));
                Some(Fastest { time: mix.time + stage.time, share, mix: *mix })
            };
            (1..=layers).map_while(of_layers).collect()
        };
        Program { layers, fastest: stages.iter().map(fastest).collect() }
    }

    /// The times that a slowest stage may have, in ascending order.
    fn times(&self) -> Vec<f64> {
        let mut times: Vec<f64> = self.fastest.iter().flatten().map(|stage| stage.time).collect();
        times.sort_unstable_by(f64::total_cmp);
        times.dedup();
        times
    }

    /// The best split whose stages take at most `slowest` each.
    fn ends(&self, slowest: f64) -> Option<Cell> {
        self.table(slowest).last().and_then(|row| row[self.layers])
    }

    /// For each stage and number of layers up to it, the best split of these layers.
    fn table(&self, slowest: f64) -> Vec<Vec<Option<Cell>>> {
        let mut rows: Vec<Vec<Option<Cell>>> = Vec::with_capacity(self.fastest.len());
        for stage in &self.fastest {
            let mut row = vec![None; self.layers + 1];
            for (own, fastest) in (1..).zip(stage).take_while(|(_, fastest)| fastest.time <= slowest) {
                for (before, so_far) in self.before(rows.last(), own) {
                    let sum = so_far.sum + fastest.time;
                    let cell = Cell { sum, share: so_far.share.max(fastest.share), own };
                    let place: &mut Option<Cell> = &mut row[before + own];
                    if place.is_none_or(|other| precedes((cell.sum, cell.share), (other.sum, other.share))) {
                        *place = Some(cell);
                    }
                }
            }
            rows.push(row);
        }
        rows
    }

    /// The splits over the earlier stages that leave room for `own` layers; the empty one before the first stage.
    fn before<'a>(
        &self,
        row: Option<&'a Vec<Option<Cell>>>,
        own: usize,
    ) -> impl Iterator<Item = (usize, Cell)> + use<'a> {
        let none = Cell { sum: 0.0, share: 0.0, own: 0 };
        let first = row.is_none().then_some((0, none)).filter(|_| own <= self.layers);
        let last = self.layers.saturating_sub(own);
        let others = row.into_iter().flat_map(move |row| row.iter().copied().take(last + 1).enumerate());
        first.into_iter().chain(others.filter_map(|(before, cell)| Some((before, cell?))))
    }

    /// The split whose stages take at most `slowest`, followed back through the table.
    fn split(&self, time: f64, slowest: f64) -> PipelineSplit {
        let mut left = self.layers;
        let mut layers: Vec<usize> = Vec::new();
        for row in self.table(slowest).iter().rev() {
            let own = row[left].expect("the split exists").own;
            layers.push(own);
            left -= own;
        }
        layers.reverse();
        let taken: Vec<Fastest> = layers.iter().zip(&self.fastest).map(|(&own, stage)| stage[own - 1]).collect();
        PipelineSplit {
            time,
            stage_times: taken.iter().map(|stage| stage.time).collect(),
            mixes: taken.iter().map(|stage| stage.mix).collect(),
            layers,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::tuning::MixOption;

    fn time(stage_times: &[f64], micro_batches: u64) -> f64 {
        let slowest = stage_times.iter().copied().fold(0.0, f64::max);
        stage_times.iter().sum::<f64>() + count(micro_batches - 1) * slowest
    }

    /// Every split of the layers, at least one on each stage.
    fn splits(layers: usize, stages: usize) -> Vec<Vec<usize>> {
        match stages {
            0 => {
                if layers == 0 {
                    vec![Vec::new()]
                } else {
                    Vec::new()
                }
            }
            _ => (1..=layers)
                .flat_map(|own| {
                    splits(layers - own, stages - 1).into_iter().map(move |rest| [vec![own], rest].concat())
                })
                .collect(),
        }
    }

    /// The time of a split with each stage's fastest mix, by trying each number of layers of the first of two options.
    fn by_trying(stages: &[(Vec<MixOption>, u64, f64)], split: &[usize], micro_batches: u64) -> Option<f64> {
        let of_stage = |(own, (options, limit, extra)): (&usize, &(Vec<MixOption>, u64, f64))| {
            let mixes = (0..=*own).map(|first| [first, own - first]);
            let fitting = mixes.filter(|mix| {
                mix.iter().zip(options).map(|(&n, option)| n as u64 * option.memory).sum::<u64>() <= *limit
            });
            let times =
                fitting.map(|mix| mix.iter().zip(options).map(|(&n, option)| count(n) * option.time).sum::<f64>());
            Some(times.min_by(f64::total_cmp)? + extra)
        };
        let times: Option<Vec<f64>> = split.iter().zip(stages).map(of_stage).collect();
        Some(time(&times?, micro_batches))
    }

    proptest! {
        /// Neither the even split nor any other is faster under the same costs, and no stage exceeds its memory.
        #[test]
        fn no_other_split_is_faster(
            stages in vec((vec((1..9_u64, 1..9_u32), 2), 0..40_u64, 0..6_u32), 1..4),
            layers in 1..9_usize,
            micro_batches in 1..20_u64,
        ) {
            let stages: Vec<(Vec<MixOption>, u64, f64)> = stages.into_iter().map(|(options, limit, extra)| {
                let option = |(memory, time): (u64, u32)| MixOption { memory, time: time.into(), last_time: time.into() };
                (options.into_iter().map(option).collect(), limit, extra.into())
            }).collect();
            // Mixes of more memory than the stages have: the split, not the mixes, keeps the limit.
            let mixes: Vec<LayerMixes> =
                stages.iter().map(|(options, limit, _)| LayerMixes::new(options, layers, limit + 20)).collect();
            let given: Vec<PipelineStage> = mixes.iter().zip(&stages)
                .map(|(mixes, &(_, limit, time))| PipelineStage { mixes, limit, time }).collect();
            let found = PipelineSplit::fastest(&given, layers, micro_batches);
            let all = splits(layers, stages.len());
            let best = all.iter().filter_map(|split| by_trying(&stages, split, micro_batches)).min_by(f64::total_cmp);
            prop_assert_eq!(found.as_ref().map(|found| found.time), best);
            if let Some(found) = found {
                prop_assert_eq!(found.layers.iter().sum::<usize>(), layers);
                prop_assert_eq!(by_trying(&stages, &found.layers, micro_batches), best);
                prop_assert_eq!(Some(time(&found.stage_times, micro_batches)), best);
                prop_assert!(found.mixes.iter().zip(&stages).all(|(mix, stage)| mix.memory <= stage.1));
            }
        }
    }

    /// Four stages of which the last also computes a head that takes as long as a layer. Four layers at most on a stage
    /// take 38; of these splits, those with four layers on the first stage need 16 instead of 12.
    #[test]
    fn stages_are_balanced_in_time_and_then_in_memory() {
        let stage = |in_flight: u64| {
            let option = MixOption { memory: in_flight, time: 1.0, last_time: 1.0 };
            LayerMixes::new(&[option], 13, 20)
        };
        let mixes: Vec<LayerMixes> = [4, 3, 2, 1].map(stage).into();
        let heads = [0.0, 0.0, 0.0, 1.0];
        let stages: Vec<PipelineStage> =
            mixes.iter().zip(heads).map(|(mixes, time)| PipelineStage { mixes, limit: 20, time }).collect();
        let found = PipelineSplit::fastest(&stages, 13, 7).unwrap();
        assert_eq!((found.time, found.layers.iter().sum::<usize>()), (14.0 + 6.0 * 4.0, 13));
        assert_eq!(found.mixes.iter().map(|mix| mix.memory).max(), Some(12));
    }
}
