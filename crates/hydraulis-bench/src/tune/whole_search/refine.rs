//! Small changes of a split until none makes it faster.

use hydraulis_core::tuning::{Mix, PipelineStage};

/// A step's time from each stage's time without the reduction of gradients, and its layers' time with it.
pub(super) type Step<'a> = &'a dyn Fn(&[f64], &[f64]) -> f64;

/// The layers and the mix of each stage.
type Split = Vec<(usize, Mix)>;

/// For each stage and number of layers, the mixes that no other beats in both times.
pub(super) struct Choices {
    /// Times of the stages outside of their layers.
    outside: Vec<f64>,
    mixes: Vec<Vec<Vec<Mix>>>,
}

impl Choices {
    pub(super) fn new(stages: &[PipelineStage], layers: usize) -> Choices {
        let of_stage =
            |stage: &PipelineStage| (0..=layers).map(|own| fastest(stage.mixes.within(own, stage.limit))).collect();
        Choices {
            outside: stages.iter().map(|stage| stage.time).collect(),
            mixes: stages.iter().map(of_stage).collect(),
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

/// The mixes that no other beats in both times, the fastest without reduction first.
fn fastest(mixes: &[Mix]) -> Vec<Mix> {
    let mut all = mixes.to_vec();
    all.sort_by(|one, other| one.time.total_cmp(&other.time).then(one.last_time.total_cmp(&other.last_time)));
    let mut least = f64::INFINITY;
    all.retain(|mix| {
        let is_faster = mix.last_time < least;
        least = least.min(mix.last_time);
        is_faster
    });
    all
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
