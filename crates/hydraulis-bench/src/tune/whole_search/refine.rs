//! Small changes of a split until none makes it faster, and all splits that may beat the result.

use hydraulis_core::tuning::{Mix, PipelineStage};

use super::profile::float;

/// A step's time from each stage's time without the reduction of gradients, and its layers' time with it.
pub(super) type Step<'a> = &'a dyn Fn(&[f64], &[f64]) -> f64;

/// The layers and the mix of each stage.
type Split = Vec<(usize, Mix)>;

/// For each stage and number of layers, the mixes that no other beats in both times, the fastest first; on the first of
/// several stages all mixes.
///
/// A slower first stage may end a step earlier where a middle one is slowest: the reference's time falls there.
pub(super) struct Choices {
    /// Times of the stages outside of their layers.
    outside: Vec<f64>,
    mixes: Vec<Vec<Vec<Mix>>>,
}

impl Choices {
    pub(super) fn new(stages: &[PipelineStage], layers: usize) -> Choices {
        let of_stage = |(place, stage): (usize, &PipelineStage)| {
            let has_all = place == 0 && stages.len() > 1;
            (0..=layers).map(|own| fastest(stage.mixes.within(own, stage.limit), has_all)).collect()
        };
        Choices {
            outside: stages.iter().map(|stage| stage.time).collect(),
            mixes: stages.iter().enumerate().map(of_stage).collect(),
        }
    }

    /// The split with these layers whose mixes are best one at a time; exact for one stage.
    pub(super) fn best(&self, layers: &[usize], step: Step) -> Option<Split> {
        refined_mixes(self, self.start(layers)?, step).map(|(_, split)| split)
    }

    /// Each stage's fastest mix without the reduction of gradients.
    fn start(&self, layers: &[usize]) -> Option<Split> {
        layers.iter().zip(&self.mixes).map(|(&own, stage)| Some((own, *stage[own].first()?))).collect()
    }

    fn time(&self, split: &Split, step: Step) -> f64 {
        let alone: Vec<f64> = split.iter().zip(&self.outside).map(|((_, mix), outside)| mix.time + outside).collect();
        let synced: Vec<f64> = split.iter().map(|(_, mix)| mix.last_time).collect();
        step(&alone, &synced)
    }
}

/// The mixes that no other beats in both times, or all, the fastest without reduction first.
fn fastest(mixes: &[Mix], has_all: bool) -> Vec<Mix> {
    let mut all = mixes.to_vec();
    all.sort_by(|one, other| one.time.total_cmp(&other.time).then(one.last_time.total_cmp(&other.last_time)));
    let mut least = f64::INFINITY;
    all.retain(|mix| {
        let is_faster = mix.last_time < least;
        least = least.min(mix.last_time);
        has_all || is_faster
    });
    all
}

/// Splits whose mixes are chosen for one part of the space: all that may be fastest in a pipeline of four stages and 64
/// micro-batches, in a few milliseconds.
const MOST_SPLITS: usize = 1_000;

/// The fastest of the ends of descents from these splits, and of the splits that may take less than `most` and than those
/// ends, up to a stated number.
///
/// A step takes at least `n - 1` times the slowest of its stages with `n` micro-batches, and once the first if the stages
/// are not more.
pub(super) fn searched(
    choices: &Choices,
    starts: &[Vec<usize>],
    micro_batches: f64,
    most: f64,
    step: Step,
) -> Option<Split> {
    let ends = starts.iter().filter_map(|start| refined(choices, start, step));
    let best = ends.min_by(|one, other| one.0.total_cmp(&other.0));
    let most = best.as_ref().map_or(most, |best| best.0.min(most));
    let layers = starts.first()?.iter().sum();
    let mut others = Others { choices, micro_batches, step, most, best: None, left: MOST_SPLITS, split: Vec::new() };
    others.extend(layers, 0.0);
    let improved = others.best.and_then(|split| refined(choices, &split, step));
    let found = best.into_iter().chain(improved);
    found.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, split)| split)
}

/// Splits one stage after another, as long as they may be faster.
struct Others<'a> {
    choices: &'a Choices,
    micro_batches: f64,
    step: Step<'a>,
    /// Time of the fastest split so far.
    most: f64,
    best: Option<Vec<usize>>,
    /// Splits that may still be tried.
    left: usize,
    /// Layers of the first stages.
    split: Vec<usize>,
}

impl Others<'_> {
    /// Tries the splits of these layers over the stages from the next one on.
    fn extend(&mut self, layers: usize, first: f64) {
        let stage = self.split.len();
        let later = self.choices.mixes.len() - stage - 1;
        if later == 0 {
            return if self.least(stage, layers, first).is_some() {
                self.judge(layers);
            };
        }
        let room: usize = (stage + 1..=stage + later).map(|stage| self.room(stage, layers, first)).sum();
        for own in layers.saturating_sub(room).max(1)..=layers.saturating_sub(later) {
            let Some(time) = self.least(stage, own, first) else { break };
            if self.left == 0 {
                return;
            }
            self.split.push(own);
            self.extend(layers - own, if stage == 0 { time } else { first });
            self.split.pop();
        }
    }

    /// The least time of these layers on a stage; none if no faster split has them there.
    fn least(&self, stage: usize, layers: usize, first: f64) -> Option<f64> {
        let time = self.choices.mixes[stage].get(layers)?.first()?.time + self.choices.outside[stage];
        let stages = self.choices.mixes.len() as u64;
        let first = match stage {
            0 => time,
            _ => first,
        };
        let once = if self.micro_batches >= float(stages) { first } else { 0.0 };
        ((self.micro_batches - 1.0) * time + once < self.most).then_some(time)
    }

    /// Most layers on a stage of a faster split.
    fn room(&self, stage: usize, layers: usize, first: f64) -> usize {
        (1..=layers).take_while(|&own| self.least(stage, own, first).is_some()).count()
    }

    /// Keeps the first stages with these layers on the last one if they are the fastest.
    fn judge(&mut self, last: usize) {
        self.left = self.left.saturating_sub(1);
        let split = [self.split.as_slice(), &[last]].concat();
        let found = self.choices.start(&split).and_then(|start| refined_mixes(self.choices, start, self.step));
        if let Some((time, _)) = found.filter(|(time, _)| *time < self.most) {
            (self.most, self.best) = (time, Some(split));
        }
    }
}

/// The end of a descent from a split: no other mix of one stage and no layer moved between two stages is faster.
pub(super) fn refined(choices: &Choices, start: &[usize], step: Step) -> Option<(f64, Split)> {
    let mut best = refined_mixes(choices, choices.start(start)?, step)?;
    loop {
        let layers: Vec<usize> = best.1.iter().map(|stage| stage.0).collect();
        let moves = (0..layers.len()).flat_map(|from| (0..layers.len()).map(move |to| (from, to)));
        let moved = moves.filter(|&(from, to)| from != to && layers[from] > 1).filter_map(|(from, to)| {
            let mut other = best.1.clone();
            for (stage, own) in [(from, layers[from] - 1), (to, layers[to] + 1)] {
                other[stage] = (own, *choices.mixes[stage][own].first()?);
            }
            refined_mixes(choices, other, step)
        });
        match moved.min_by(|one, other| one.0.total_cmp(&other.0)) {
            Some(next) if next.0 < best.0 => best = next,
            _ => return Some(best),
        }
    }
}

/// Changes one stage's mix at a time while that makes the split faster.
fn refined_mixes(choices: &Choices, mut split: Split, step: Step) -> Option<(f64, Split)> {
    let mut time = choices.time(&split, step);
    loop {
        let before = time;
        for stage in 0..split.len() {
            let (own, mut best) = split[stage];
            for &mix in &choices.mixes[stage][own] {
                split[stage].1 = mix;
                let other = choices.time(&split, step);
                if other < time {
                    (time, best) = (other, mix);
                }
            }
            split[stage].1 = best;
        }
        if time >= before {
            return Some((time, split));
        }
    }
}
