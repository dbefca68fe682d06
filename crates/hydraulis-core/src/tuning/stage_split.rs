//! Whole layers over the stages of a pipeline, and whole micro-batches over pipelines.

/// A stage's speed and room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Time of one layer.
    pub time: f64,
    /// Most layers for which the stage's ranks have memory.
    pub most: u64,
}

/// The layers of each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageSplit {
    /// Time of the slowest stage.
    pub time: f64,
    /// Layers of each stage.
    pub layers: Vec<u64>,
}

impl StageSplit {
    /// The split whose slowest stage is fastest; none if the stages have no room for all layers. A stage may have no layer.
    ///
    /// Layers go one after another to the stage that ends first with one more, which is exact. Until the time that they would
    /// take if they could be divided, every stage has all that it can compute.
    pub fn fastest(stages: &[Stage], layers: u64) -> Option<StageSplit> {
        let room: u64 = stages.iter().map(|stage| stage.most.min(layers)).sum();
        if stages.is_empty() || room < layers {
            return None;
        }
        let first = divided_time(stages, layers) * (1.0 - 1e-9);
        let mut own: Vec<u64> = stages.iter().map(|stage| most(stage, first, layers)).collect();
        for _ in own.iter().sum::<u64>()..layers {
            let end = |place: usize| stages[place].time * crate::units::count(own[place] + 1);
            let free = (0..stages.len()).filter(|&place| own[place] < stages[place].most.min(layers));
            let next = free.min_by(|&one, &other| end(one).total_cmp(&end(other)))?;
            own[next] += 1;
        }
        let ends = stages.iter().zip(&own).map(|(stage, &own)| stage.time * crate::units::count(own));
        let time = ends.fold(0.0, f64::max);
        let mut split: Vec<u64> = stages.iter().map(|stage| most(stage, time, layers)).collect();
        let mut excess = split.iter().sum::<u64>() - layers;
        // No stage loses its last layer while another has two.
        for least in [1, 0] {
            for own in &mut split {
                let taken = excess.min(own.saturating_sub(least));
                *own -= taken;
                excess -= taken;
            }
        }
        Some(StageSplit { time, layers: split })
    }
}

/// The time of the stages if layers could be divided, at least 0.
fn divided_time(stages: &[Stage], layers: u64) -> f64 {
    let (mut left, mut free) = (crate::units::count(layers), stages.to_vec());
    loop {
        let time = left / free.iter().map(|stage| 1.0 / stage.time).sum::<f64>();
        // A stage that is full before takes no more.
        let (full, others): (Vec<Stage>, Vec<Stage>) =
            free.iter().partition(|stage| stage.time * crate::units::count(stage.most) < time);
        left -= full.iter().map(|stage| crate::units::count(stage.most)).sum::<f64>();
        if full.is_empty() || others.is_empty() {
            return time;
        }
        free = others;
    }
}

/// Most layers that a stage computes by `time`.
fn most(stage: &Stage, time: f64, layers: u64) -> u64 {
    // The margin keeps a product that rounding puts just above the time.
    let by_time = crate::units::whole(time / stage.time * (1.0 + 1e-12));
    by_time.min(stage.most).min(layers)
}

/// Whole numbers of micro-batches for pipelines that take `times` for each: the greatest product of time and number is
/// least, each pipeline has at least its `least`, and all have `total` together. None if the least numbers are more.
///
/// They go one after another to the pipeline that ends first with one more. Until the time that they would take if they could
/// be divided, every pipeline has all that it can compute.
pub fn share(times: &[f64], least: &[u64], total: u64) -> Option<(f64, Vec<u64>)> {
    total.checked_sub(least.iter().sum())?;
    if times.is_empty() {
        return None;
    }
    let first = divided_share_time(times, least, total) * (1.0 - 1e-9);
    let own = |(time, &least): (&f64, &u64)| crate::units::whole(first / time).max(least);
    let by_time: Vec<u64> = times.iter().zip(least).map(own).collect();
    let sum = by_time.iter().try_fold(0_u64, |sum, &number| sum.checked_add(number));
    let mut numbers = if sum.is_some_and(|sum| sum <= total) { by_time } else { least.to_vec() };
    let mut left = total - numbers.iter().sum::<u64>();
    while left > 0 {
        let end = |place: &usize| times[*place] * crate::units::count(numbers[*place] + 1);
        let next = (0..times.len()).min_by(|one, other| end(one).total_cmp(&end(other)))?;
        numbers[next] += 1;
        left -= 1;
    }
    let ends = times.iter().zip(&numbers).map(|(time, &number)| time * crate::units::count(number));
    Some((ends.fold(0.0, f64::max), numbers))
}

/// The time of the pipelines if micro-batches could be divided.
fn divided_share_time(times: &[f64], least: &[u64], total: u64) -> f64 {
    let (mut left, mut free) = (crate::units::count(total), (0..times.len()).collect::<Vec<usize>>());
    loop {
        let time = left / free.iter().map(|&place| 1.0 / times[place]).sum::<f64>();
        // A pipeline whose least number takes longer has no more than that.
        let own = |place: usize| crate::units::count(least[place]);
        let (busy, others): (Vec<usize>, Vec<usize>) =
            free.iter().partition(|&&place| own(place) * times[place] > time);
        if busy.is_empty() || others.is_empty() {
            return time;
        }
        left -= busy.into_iter().map(own).sum::<f64>();
        free = others;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// All splits of `total` into parts of at least `least`.
    fn splits(total: u64, least: &[u64]) -> Vec<Vec<u64>> {
        match least {
            [] => {
                if total == 0 {
                    vec![Vec::new()]
                } else {
                    Vec::new()
                }
            }
            [first, rest @ ..] => (*first..=total)
                .flat_map(|own| splits(total - own, rest).into_iter().map(move |rest| [vec![own], rest].concat()))
                .collect(),
        }
    }

    #[test]
    fn many_micro_batches_are_shared_by_their_times() {
        assert_eq!(
            share(&[1.0, 3.0], &[1, 1], 1 << 40),
            Some((824_633_720_832.0, vec![824_633_720_832, 274_877_906_944]))
        );
        assert_eq!(share(&[1.0, 3.0], &[1, 1 << 20], (1 << 20) + 5), Some((3_145_728.0, vec![5, 1 << 20])));
    }

    proptest! {
        #[test]
        fn no_other_split_is_faster(stages in vec((1..9_u32, 0..6_u64), 1..5), layers in 1..12_u64) {
            let stages: Vec<Stage> =
                stages.into_iter().map(|(time, most)| Stage { time: f64::from(time), most }).collect();
            let all = splits(layers, &vec![0; stages.len()]).into_iter();
            let fitting = all.filter(|split| split.iter().zip(&stages).all(|(own, stage)| *own <= stage.most));
            let time = |split: &Vec<u64>| {
                split.iter().zip(&stages).map(|(&own, stage)| crate::units::count(own) * stage.time).fold(0.0, f64::max)
            };
            let best = fitting.map(|split| time(&split)).min_by(f64::total_cmp);
            let found = StageSplit::fastest(&stages, layers);
            prop_assert_eq!(found.as_ref().map(|found| found.time), best);
            if let Some(found) = found {
                prop_assert_eq!(found.layers.iter().sum::<u64>(), layers);
                prop_assert!(found.layers.iter().zip(&stages).all(|(own, stage)| *own <= stage.most));
                prop_assert_eq!(Some(time(&found.layers)), best);
            }
        }

        #[test]
        fn no_other_share_ends_earlier(
            pipelines in vec((1..9_u32, 0..3_u64), 1..5),
            total in 0..10_u64,
        ) {
            let (times, least): (Vec<f64>, Vec<u64>) =
                pipelines.into_iter().map(|(time, least)| (f64::from(time), least)).unzip();
            let end = |numbers: &Vec<u64>| {
                numbers.iter().zip(&times).map(|(&own, time)| crate::units::count(own) * time).fold(0.0, f64::max)
            };
            let best = splits(total, &least).iter().map(end).min_by(f64::total_cmp);
            let found = share(&times, &least, total);
            prop_assert_eq!(found.as_ref().map(|(end, _)| *end), best);
            if let Some((_, numbers)) = found {
                prop_assert_eq!(numbers.iter().sum::<u64>(), total);
            }
        }
    }
}
