//! The time that transfers add to one stage of a replica, by its first and its last micro-batch.
//!
//! The first forward of a stage waits for the parameters of its layer groups, which arrive after those of the layer groups
//! before them. From its last backward on its gradients leave, before those of the layer groups before them. A step lasts
//! at least as long as the computation of the stage, its wait, and the gradients that are left at its end. Both ends are
//! separate, and each is the largest of some linear functions of one micro-batch's time (`timing/step.rs`). Without a
//! pipeline a step lasts exactly as long as the latest replica.

use std::ops::Range;

use crate::timing::TransferTimes;
use crate::units::{Millis, count};

/// The exposed time of a stage's transfers at both ends of a step in which gradients leave once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposure {
    first: Falling,
    last: Falling,
}

impl Exposure {
    /// The exposure to these transfers of a class with this multiplier of its only stage. None under sharded gradients,
    /// which leave in rounds.
    pub fn new(transfers: &TransferTimes, multiplier: f64, forward_share: f64) -> Option<Exposure> {
        Exposure::of_stage(transfers, 0..transfers.parameters.len(), multiplier, forward_share)
    }

    /// The exposure to these transfers of a stage of these layer groups, with this multiplier. None under sharded gradients.
    pub fn of_stage(
        transfers: &TransferTimes,
        layer_groups: Range<usize>,
        multiplier: f64,
        forward_share: f64,
    ) -> Option<Exposure> {
        let waits_once = transfers.earlier_rounds.is_none();
        let falling = |times: &[Millis], share: f64| Falling::new(times, layer_groups.clone(), multiplier * share);
        waits_once.then(|| Exposure {
            first: falling(&transfers.parameters, forward_share),
            last: falling(&transfers.gradients, 1.0 - forward_share),
        })
    }

    /// The time that transfers add to the stage if its first and its last micro-batch take these times.
    pub fn ms(&self, first: Millis, last: Millis) -> Millis {
        self.first.at(first) + self.last.at(last)
    }

    /// The times of the first and of the last micro-batch from which on longer ones overlap nothing more.
    pub fn enough(&self) -> [Millis; 2] {
        [self.first.enough(), self.last.enough()]
    }

    /// The share of the time of the first and of the last micro-batch that overlaps transfers, if it is short.
    pub fn shares(&self) -> [f64; 2] {
        [self.first.steepest(), self.last.steepest()]
    }
}

/// The latest time by which a stage's micro-batches end, by the time at which its step ends, if it computes without a
/// pause: the least exposure of any packing is in between.
#[derive(Clone, Debug, PartialEq)]
pub struct LatestEnd {
    /// Of a single micro-batch, and of more: the stage's time and the end of its step, where the slope changes.
    one: Vec<[Millis; 2]>,
    more: Vec<[Millis; 2]>,
}

impl LatestEnd {
    /// For a stage with this exposure and multiplier, whose micro-batches take at most `full` before the multiplier.
    pub fn new(exposure: &Exposure, multiplier: f64, full: Millis) -> LatestEnd {
        let [first, last] = [&exposure.first, &exposure.last].map(|falling| falling.segments(full));
        let start = exposure.ms(Millis::ZERO, Millis::ZERO);
        // A single micro-batch is the first and the last: both fall at once.
        let mut ends: Vec<Millis> = Vec::new();
        for segments in [&first, &last] {
            let mut end = Millis::ZERO;
            ends.extend(segments.iter().map(|&(_, length)| {
                end += length;
                end
            }));
        }
        ends.sort_unstable();
        let one = std::iter::once(Millis::ZERO).chain(ends.iter().copied());
        let one = one.map(|time| [time * multiplier, time * multiplier + exposure.ms(time.min(full), time.min(full))]);
        // Of more micro-batches, time goes first where it overlaps most.
        let mut all: Vec<(f64, Millis)> = first.iter().chain(&last).copied().collect();
        all.sort_by(|one, other| other.0.total_cmp(&one.0));
        let (mut time, mut exposed) = (Millis::ZERO, start);
        let mut more = vec![[Millis::ZERO, start]];
        for (slope, length) in all {
            time += length;
            exposed = exposed - length * slope;
            more.push([time * multiplier, time * multiplier + exposed]);
        }
        LatestEnd { one: one.collect(), more }
    }

    /// The latest end of this number of micro-batches whose step ends by `end`; negative if there is none.
    pub fn by(&self, micro_batches: usize, end: Millis) -> Millis {
        let points = if micro_batches == 1 { &self.one } else { &self.more };
        let after = points.partition_point(|&[_, step]| step <= end);
        let Some(&[time, step]) = after.checked_sub(1).and_then(|before| points.get(before)) else {
            return end - points[0][1];
        };
        match points.get(after) {
            Some(&[next, later]) => time + (next - time) * ((end - step).0 / (later - step).0),
            None => time + (end - step),
        }
    }
}

/// The largest of linear functions of a time that fall, none below the first one, which is constant.
#[derive(Clone, Debug, Default, PartialEq)]
struct Falling {
    /// Value at 0 and slope, by slope; each is the largest somewhere.
    lines: Vec<(Millis, f64)>,
}

impl Falling {
    /// The wait for these layer groups' buckets, of all that follow each other, while computation of `share` of a
    /// micro-batch's time goes through the layer groups in the same order.
    fn new(buckets: &[Millis], layer_groups: Range<usize>, share: f64) -> Falling {
        let number = count(layer_groups.len());
        let mut lines: Vec<(Millis, f64)> = Vec::new();
        let mut end: Millis = buckets[..layer_groups.start].iter().copied().sum();
        for (place, &ms) in buckets[layer_groups].iter().enumerate() {
            end += ms;
            let line = (end, share * count(place) / number);
            while let [.., before, last] = *lines.as_slice() {
                if !is_never_largest(before, last, line) {
                    break;
                }
                lines.pop();
            }
            lines.push(line);
        }
        Falling { lines }
    }

    fn at(&self, time: Millis) -> Millis {
        self.lines.iter().map(|&(ms, slope)| ms - time * slope).max().unwrap_or_default()
    }

    /// The time at which the first line becomes the largest.
    fn enough(&self) -> Millis {
        let Some((&(least, flat), falling)) = self.lines.split_first() else { return Millis::ZERO };
        let crossing = |&(ms, slope): &(Millis, f64)| Millis((ms - least).0 / (slope - flat));
        falling.iter().filter(|(_, slope)| *slope > flat).map(crossing).max().unwrap_or_default()
    }

    /// The slopes over the times up to `most`, each with the length of its part, the steepest first.
    fn segments(&self, most: Millis) -> Vec<(f64, Millis)> {
        let mut segments = Vec::new();
        let mut time = Millis::ZERO;
        for pair in self.lines.windows(2).rev() {
            let [(ms, slope), (above, steeper)] = [pair[0], pair[1]];
            let crossing = Millis((above - ms).0 / (steeper - slope)).min(most);
            if crossing > time {
                segments.push((steeper, crossing - time));
                time = crossing;
            }
        }
        segments
    }

    fn steepest(&self) -> f64 {
        self.lines.last().map_or(0.0, |&(_, slope)| slope)
    }
}

/// Whether a line is nowhere the largest of three, of which the one before it falls more slowly and the next one faster.
fn is_never_largest(before: (Millis, f64), line: (Millis, f64), next: (Millis, f64)) -> bool {
    let (rise, fall) = (line.0 - before.0, line.1 - before.1);
    let (next_rise, next_fall) = (next.0 - before.0, next.1 - before.1);
    // At the time at which the outer two cross.
    rise * next_fall <= next_rise * fall
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::stage_layer_groups;
    use crate::pipeline::MakespanBuffers;
    use crate::spec::LayerSplit;
    use crate::timing::{ReplicaWork, StepTimeline};

    fn transfers(parameters: &[f64], gradients: &[f64]) -> TransferTimes {
        let millis = |times: &[f64]| times.iter().copied().map(Millis).collect();
        TransferTimes { parameters: millis(parameters), gradients: millis(gradients), ..TransferTimes::default() }
    }

    /// Seven buckets: those of five layers, the embedding's and the head's.
    #[test]
    fn a_step_is_the_packing_and_the_exposure() {
        let even = transfers(&[9.0, 3.0, 3.0, 3.0, 3.0, 3.0, 6.0], &[18.0, 6.0, 6.0, 6.0, 6.0, 6.0, 12.0]);
        let uneven = transfers(&[1.0, 0.0, 40.0, 0.0, 0.0, 5.0, 2.0], &[0.0, 30.0, 0.0, 1.0, 9.0, 0.0, 3.0]);
        for transfers in [even, uneven, transfers(&[0.0; 7], &[0.0; 7])] {
            let exposure = Exposure::new(&transfers, 1.1, 0.3).unwrap();
            for times in [&[1.0][..], &[20.0, 50.0], &[200.0, 0.0, 90.0], &[5.0, 400.0], &[1e4, 1e4]] {
                let times: Vec<Millis> = times.iter().copied().map(Millis).collect();
                let work = ReplicaWork {
                    scheme: "<1>".parse().unwrap(),
                    times: &times,
                    stage_multipliers: &[1.1],
                    forward_share: 0.3,
                };
                let split = LayerSplit::even(5);
                let step = StepTimeline::new(&split, &transfers, [work], &mut MakespanBuffers::default());
                let packed = times.iter().copied().sum::<Millis>() * 1.1;
                let exposed = exposure.ms(times[0], times[times.len() - 1]);
                assert!((packed + exposed).is_close(step.end), "{transfers:?} {times:?}: {exposed:?} {step:?}");
            }
            let [first, last] = exposure.enough();
            let least = exposure.ms(Millis(1e9), Millis(1e9));
            assert!(exposure.ms(first, last).is_close(least));
            for [first, last] in [[first * 0.99, last], [first, last * 0.99]] {
                assert!(exposure.ms(first, last) > least || transfers.total() == Millis::ZERO);
            }
        }
    }

    /// No stage computes and waits longer than the step; where transfers take most of it, the last stage as long.
    #[test]
    fn a_pipeline_ends_no_earlier_than_each_stage_with_its_exposure() {
        let even = transfers(&[9.0, 3.0, 3.0, 3.0, 3.0, 3.0, 6.0], &[18.0, 6.0, 6.0, 6.0, 6.0, 6.0, 12.0]);
        let uneven = transfers(&[1.0, 0.0, 40.0, 0.0, 0.0, 5.0, 2.0], &[0.0, 30.0, 0.0, 1.0, 9.0, 0.0, 3.0]);
        let (split, scheme, multipliers) = (LayerSplit::even(5), "<pp2>".parse().unwrap(), [0.7, 0.5]);
        for transfers in [even, uneven] {
            for times in [&[1.0][..], &[20.0, 50.0], &[200.0, 1.0, 90.0], &[5.0, 400.0], &[1e4, 1e4]] {
                let times: Vec<Millis> = times.iter().copied().map(Millis).collect();
                let work = ReplicaWork { scheme, times: &times, stage_multipliers: &multipliers, forward_share: 0.3 };
                let step = StepTimeline::new(&split, &transfers, [work], &mut MakespanBuffers::default());
                let alone = (0..).zip(multipliers).map(|(stage, multiplier)| {
                    let groups = stage_layer_groups(&split, scheme, stage).unwrap();
                    let buckets = *groups.start() as usize..*groups.end() as usize + 1;
                    let exposure = Exposure::of_stage(&transfers, buckets, multiplier, 0.3).unwrap();
                    let computed = times.iter().copied().sum::<Millis>() * multiplier;
                    computed + exposure.ms(times[0], times[times.len() - 1])
                });
                let alone: Vec<Millis> = alone.collect();
                assert!(alone.iter().all(|&ms| ms <= step.end * (1.0 + 1e-12)), "{times:?}: {alone:?} {step:?}");
                let waits_most = times[0] == Millis(1.0);
                assert!(!waits_most || alone[1] >= step.end * 0.9, "{times:?}: {alone:?} {step:?}");
            }
        }
    }

    /// No packing of a grid of times ends its step earlier, and some packing ends it then.
    #[test]
    fn the_latest_end_is_that_of_the_least_exposure() {
        let transfers = transfers(&[9.0, 3.0, 3.0, 3.0, 3.0, 3.0, 6.0], &[18.0, 6.0, 6.0, 6.0, 6.0, 6.0, 12.0]);
        let (multiplier, full) = (1.2, 60.0);
        let exposure = Exposure::new(&transfers, multiplier, 0.3).unwrap();
        let latest = LatestEnd::new(&exposure, multiplier, Millis(full));
        let step =
            |first: f64, last: f64, all: f64| Millis(all * multiplier) + exposure.ms(Millis(first), Millis(last));
        for all in [0.0, 1.0, 7.5, 20.0, 45.0, 60.0, 80.0, 119.0, 120.0, 300.0] {
            let parts = (0..=600).map(|part| full * f64::from(part) / 600.0);
            let more = parts.filter(|first| all - first >= -1e-9).map(|first| step(first, full.min(all - first), all));
            let (one, more) = (step(all.min(full), all.min(full), all), more.min().unwrap());
            assert!(more >= one - Millis(1e-9));
            for (number, end) in [(1, one), (2, more)] {
                let found = latest.by(number, end).0;
                assert!((found - all * multiplier).abs() < 0.2, "{number} {all}: {found} {end:?}");
                assert!(found >= all * multiplier - 1e-9, "{number} {all}: {found}");
            }
        }
        assert!(latest.by(1, Millis(1.0)).0 < 0.0 && latest.by(2, Millis(1.0)).0 < 0.0);
    }

    #[test]
    fn only_lines_that_are_largest_somewhere_are_kept() {
        let falling = Falling::new(&[1.0, 1.0, 1.0, 1.0].map(Millis), 0..4, 1.0);
        // Equal buckets: the first and the last decide.
        assert_eq!(falling.lines, [(Millis(1.0), 0.0), (Millis(4.0), 0.75)]);
        assert_eq!((falling.enough(), falling.steepest()), (Millis(4.0), 0.75));
        assert_eq!(Falling::default().enough(), Millis::ZERO);
    }

    #[test]
    fn rounds_have_no_exposure_of_this_form() {
        let rounds = TransferTimes { earlier_rounds: Some(Vec::new()), ..transfers(&[1.0], &[1.0]) };
        assert_eq!(Exposure::new(&rounds, 1.0, 0.3), None);
    }
}
