//! The fast computation of a replica's makespan, which the packer minimises.

use crate::pipeline::Compute;
use crate::pipeline::one_f_one_b::computation;
use crate::units::Millis;

/// Buffers of the makespan computation, kept between calls so that a search allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct MakespanBuffers {
    forward_end: Vec<f64>,
    backward_end: Vec<f64>,
    clock: Vec<f64>,
    done: Vec<usize>,
}

/// The 1F1B makespan of micro-batches with these times on a stage of multiplier 1.
///
/// Equal to the simulated time of the instruction lists (tested), without building them: each stage is
/// advanced as far as its inputs allow, stages in turn, until all are done.
pub fn makespan(
    times: &[Millis],
    stage_multipliers: &[f64],
    forward_share: f64,
    buffers: &mut MakespanBuffers,
) -> Millis {
    let (stages, micro_batches) = (stage_multipliers.len(), times.len());
    if stages == 1 {
        return times.iter().copied().sum::<Millis>() * stage_multipliers[0];
    }
    buffers.reset(stages, micro_batches);
    run(times, stage_multipliers, forward_share, |_| 0.0, buffers);
    Millis(buffers.clock.iter().copied().fold(0.0, f64::max))
}

/// End of the last backward of each stage, with the first forward of stage `j` ending no earlier than `first_ends[j]`.
///
/// A stage that begins before all of its parameters have arrived behaves like this. No micro-batch ends at 0.
pub fn delayed_ends(
    times: &[Millis],
    stage_multipliers: &[f64],
    forward_share: f64,
    first_ends: &[Millis],
    buffers: &mut MakespanBuffers,
) -> Vec<Millis> {
    buffers.reset(stage_multipliers.len(), times.len());
    run(times, stage_multipliers, forward_share, |stage| first_ends[stage].0, buffers);
    buffers.clock.iter().copied().map(Millis).collect()
}

fn run(
    times: &[Millis],
    stage_multipliers: &[f64],
    forward_share: f64,
    first_end: impl Fn(usize) -> f64,
    buffers: &mut MakespanBuffers,
) {
    let stages = stage_multipliers.len();
    let mut left = stages;
    while left > 0 {
        left = 0;
        for (stage, &multiplier) in stage_multipliers.iter().enumerate() {
            let first_end = first_end(stage);
            let work = StageWork { stage, stages, times, multiplier, forward_share, first_end };
            left += usize::from(!work.advance(buffers));
        }
    }
}

impl MakespanBuffers {
    fn reset(&mut self, stages: usize, micro_batches: usize) {
        for (buffer, length) in [
            (&mut self.forward_end, stages * micro_batches),
            (&mut self.backward_end, stages * micro_batches),
            (&mut self.clock, stages),
        ] {
            buffer.clear();
            buffer.resize(length, f64::NAN);
        }
        self.clock.fill(0.0);
        self.done.clear();
        self.done.resize(stages, 0);
    }
}

struct StageWork<'a> {
    stage: usize,
    stages: usize,
    times: &'a [Millis],
    multiplier: f64,
    forward_share: f64,
    first_end: f64,
}

impl StageWork<'_> {
    /// Computes as far as inputs are known; true when the stage is done.
    fn advance(&self, buffers: &mut MakespanBuffers) -> bool {
        let v = self.times.len();
        while buffers.done[self.stage] < 2 * v {
            let (is_forward, micro_batch) = match computation(buffers.done[self.stage], self.stage, self.stages, v) {
                Compute::Forward(micro_batch) => (true, micro_batch),
                Compute::Backward(micro_batch) => (false, micro_batch),
            };
            let input = self.input(is_forward, micro_batch, buffers);
            if input.is_nan() {
                return false;
            }
            let share = if is_forward { self.forward_share } else { 1.0 - self.forward_share };
            let mut end = buffers.clock[self.stage].max(input) + self.times[micro_batch].0 * self.multiplier * share;
            if buffers.done[self.stage] == 0 {
                end = end.max(self.first_end);
            }
            buffers.clock[self.stage] = end;
            let ends = if is_forward { &mut buffers.forward_end } else { &mut buffers.backward_end };
            ends[self.stage * v + micro_batch] = end;
            buffers.done[self.stage] += 1;
        }
        true
    }

    /// Time at which the input of a computation arrives; NaN while that is unknown.
    fn input(&self, is_forward: bool, micro_batch: usize, buffers: &MakespanBuffers) -> f64 {
        let v = self.times.len();
        match is_forward {
            true if self.stage == 0 => 0.0,
            true => buffers.forward_end[(self.stage - 1) * v + micro_batch],
            // On the last stage a backward follows its own forward, whose end is the stage's current time.
            false if self.stage + 1 == self.stages => 0.0,
            false => buffers.backward_end[(self.stage + 1) * v + micro_batch],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(times: &[f64], stages: usize) -> f64 {
        let times: Vec<Millis> = times.iter().copied().map(Millis).collect();
        makespan(&times, &vec![1.0; stages], 1.0 / 3.0, &mut MakespanBuffers::default()).0
    }

    #[test]
    fn makespans_equal_closed_forms() {
        // One stage sums the times; one micro-batch passes every stage; equal ones take (v + p - 1) t.
        assert!((time(&[1.0, 2.0, 4.0], 1) - 7.0).abs() < 1e-12);
        assert!((time(&[3.0], 4) - 12.0).abs() < 1e-12);
        for (stages, v) in (1..7).flat_map(|p| (1..12).map(move |v| (p, v))) {
            let expected = crate::units::count(v + stages - 1) * 2.5;
            assert!((time(&vec![2.5; v], stages) - expected).abs() < 1e-9, "{stages} stages, {v} micro-batches");
        }
    }

    #[test]
    fn a_slow_last_stage_sets_the_makespan() {
        // The planner notes give 8.2, 13.4 and 23.8 for p = 4, t = 1 and a last stage 1.3 times as slow.
        for (v, expected) in [(4, 8.2), (8, 13.4), (16, 23.8)] {
            let times = vec![Millis(1.0); v];
            let total = makespan(&times, &[1.0, 1.0, 1.0, 1.3], 1.0 / 3.0, &mut MakespanBuffers::default());
            assert!((total.0 - expected).abs() < 1e-9, "{v}: {}", total.0);
        }
    }

    #[test]
    fn a_late_first_forward_delays_the_stages_that_wait_for_it() {
        let late = |times: &[f64], first_ends: &[f64]| {
            let times: Vec<Millis> = times.iter().copied().map(Millis).collect();
            let first_ends: Vec<Millis> = first_ends.iter().copied().map(Millis).collect();
            let stages = vec![1.0; first_ends.len()];
            delayed_ends(&times, &stages, 1.0 / 3.0, &first_ends, &mut MakespanBuffers::default())
        };
        let are = |ends: &[Millis], expected: &[f64]| ends.iter().map(|end| end.0).eq(expected.iter().copied());
        // One stage: forwards of 1, backwards of 2; the first forward ends at 4 instead of 1.
        assert!(are(&late(&[3.0, 3.0], &[4.0]), &[9.0]));
        // Two stages: the first stage's first forward ends at 1 and the second's at 5 instead of 2.
        assert!(are(&late(&[3.0], &[0.5, 5.0]), &[9.0, 7.0]));
        assert!(are(&late(&[3.0], &[0.0, 0.0]), &[6.0, 4.0]));
        assert!(are(&late(&[], &[4.0, 4.0]), &[0.0, 0.0]));
    }

    #[test]
    fn no_micro_batch_takes_no_time() {
        assert!(time(&[], 3).abs() < 1e-12);
    }
}
