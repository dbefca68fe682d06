//! Simulates a replica's instruction lists with predicted or measured durations.

use crate::pipeline::{Compute, Instruction, Neighbour, instructions};
use crate::units::Millis;

/// Duration of each computation of one stage, by micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct StageTimes {
    /// Forward passes.
    pub forward: Vec<Millis>,
    /// Backward passes.
    pub backward: Vec<Millis>,
}

/// One computation on the timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Stage of the computation.
    pub stage: usize,
    /// The computation.
    pub compute: Compute,
    /// Start, after the start of the iteration.
    pub start: Millis,
    /// End, after the start of the iteration.
    pub end: Millis,
}

/// The timeline of every stage of one replica.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Computations, stage by stage, each stage's in order.
    pub spans: Vec<Span>,
}

impl Timeline {
    /// End of the last computation.
    pub fn makespan(&self) -> Millis {
        self.spans.iter().map(|span| span.end).max().unwrap_or_default()
    }
}

/// The timeline of a replica with these computation times, whose messages arrive the moment they are sent.
pub fn simulate(stages: &[StageTimes]) -> Timeline {
    simulate_over(stages, &[])
}

/// The timeline of a replica with these computation times, whose messages take time.
///
/// `travel[j][m]` is the time of the tensor of micro-batch `m` between stages `j` and `j + 1`, as an activation or as a
/// gradient; without any, messages arrive at once. A stage waits only for its receives: sends do not block. Messages of
/// one direction between two stages travel one after another, in parallel with those of the other direction.
pub fn simulate_over(stages: &[StageTimes], travel: &[Vec<Millis>]) -> Timeline {
    simulate_delayed(stages, travel, &[])
}

/// As [`simulate_over`], with the first forward of stage `j` ending no earlier than `first_ends[j]`.
///
/// A stage that begins before all of its parameters have arrived behaves like this: its first span contains the wait.
pub fn simulate_delayed(stages: &[StageTimes], travel: &[Vec<Millis>], first_ends: &[Millis]) -> Timeline {
    let mut run = Run::new(stages, travel, first_ends);
    while run.advance_all() {}
    Timeline { spans: run.spans.concat() }
}

struct Run<'a> {
    stages: &'a [StageTimes],
    travel: &'a [Vec<Millis>],
    first_ends: &'a [Millis],
    lists: Vec<Vec<Instruction>>,
    at: Vec<usize>,
    clock: Vec<Millis>,
    /// Messages in transit from each stage, to the next (0) and to the previous one (1).
    wires: [Vec<Wire>; 2],
    spans: Vec<Vec<Span>>,
}

/// One direction between two stages.
#[derive(Clone)]
struct Wire {
    /// Arrival of each micro-batch's tensor, once it has been sent.
    arrivals: Vec<Option<Millis>>,
    /// Arrival of the last one.
    free: Millis,
}

impl<'a> Run<'a> {
    fn new(stages: &'a [StageTimes], travel: &'a [Vec<Millis>], first_ends: &'a [Millis]) -> Run<'a> {
        let micro_batches = stages.first().map_or(0, |stage| stage.forward.len());
        let list = |stage| instructions(stage, stages.len(), micro_batches);
        let wires = vec![Wire { arrivals: vec![None; micro_batches], free: Millis::ZERO }; stages.len()];
        Run {
            stages,
            travel,
            first_ends,
            lists: (0..stages.len()).map(list).collect(),
            at: vec![0; stages.len()],
            clock: vec![Millis::ZERO; stages.len()],
            wires: [wires.clone(), wires],
            spans: vec![Vec::with_capacity(2 * micro_batches); stages.len()],
        }
    }

    /// Advances each stage until it waits; false if none could advance.
    fn advance_all(&mut self) -> bool {
        let before: usize = self.at.iter().sum();
        for stage in 0..self.stages.len() {
            while let Some(&step) = self.lists[stage].get(self.at[stage]) {
                if !self.run(stage, step) {
                    break;
                }
                self.at[stage] += 1;
            }
        }
        self.at.iter().sum::<usize>() > before
    }

    /// Runs one instruction; false while it must wait.
    fn run(&mut self, stage: usize, step: Instruction) -> bool {
        match step {
            Instruction::Forward { micro_batch } => {
                self.compute(stage, Compute::Forward(micro_batch), self.stages[stage].forward[micro_batch]);
                true
            }
            Instruction::Backward { micro_batch } => {
                self.compute(stage, Compute::Backward(micro_batch), self.stages[stage].backward[micro_batch]);
                true
            }
            Instruction::SendReceive { neighbour, send, receive } => self.exchange(stage, neighbour, send, receive),
        }
    }

    fn compute(&mut self, stage: usize, compute: Compute, duration: Millis) {
        let start = self.clock[stage];
        let is_first = self.spans[stage].is_empty();
        let earliest = self.first_ends.get(stage).copied().filter(|_| is_first).unwrap_or_default();
        let end = earliest.max(start + duration);
        self.clock[stage] = end;
        self.spans[stage].push(Span { stage, compute, start, end });
    }

    fn exchange(&mut self, stage: usize, neighbour: Neighbour, send: Option<usize>, receive: Option<usize>) -> bool {
        let (outward, inward, other) = match neighbour {
            Neighbour::Next => (0, 1, stage + 1),
            Neighbour::Previous => (1, 0, stage - 1),
        };
        // A waiting exchange is tried again, and its tensor was sent at the first try.
        if let Some(micro_batch) = send.filter(|&sent| self.wires[outward][stage].arrivals[sent].is_none()) {
            let travel = self.travel.get(stage.min(other)).map_or(Millis::ZERO, |times| times[micro_batch]);
            let wire = &mut self.wires[outward][stage];
            wire.free = wire.free.max(self.clock[stage]) + travel;
            wire.arrivals[micro_batch] = Some(wire.free);
        }
        let Some(micro_batch) = receive else { return true };
        let Some(arrival) = self.wires[inward][other].arrivals[micro_batch] else { return false };
        self.clock[stage] = self.clock[stage].max(arrival);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::{MakespanBuffers, makespan};

    fn stage_times(times: &[f64], multipliers: &[f64], share: f64) -> Vec<StageTimes> {
        let scaled = |factor: f64| times.iter().map(|t| Millis(t * factor)).collect();
        let stage = |u: &f64| StageTimes { forward: scaled(u * share), backward: scaled(u * (1.0 - share)) };
        multipliers.iter().map(stage).collect()
    }

    /// Slow reference implementation: repeats "an operation starts when its stage is free and its input is there" over
    /// the textbook order, as a fixed point.
    fn plain_makespan(stages: &[StageTimes]) -> f64 {
        let (p, v) = (stages.len(), stages[0].forward.len());
        let mut end = vec![vec![[0.0_f64; 2]; v]; p];
        for _ in 0..=2 * p * v {
            for s in 0..p {
                let warm = (p - 1 - s).min(v);
                let mut order: Vec<(usize, usize)> = (0..warm).map(|m| (m, 0)).collect();
                (0..v - warm).for_each(|n| order.extend([(warm + n, 0), (n, 1)]));
                order.extend((v - warm..v).map(|m| (m, 1)));
                let mut free = 0.0_f64;
                for (m, kind) in order {
                    let input = match kind {
                        0 if s > 0 => end[s - 1][m][0],
                        1 if s + 1 < p => end[s + 1][m][1],
                        _ => 0.0,
                    };
                    let duration = if kind == 0 { stages[s].forward[m] } else { stages[s].backward[m] };
                    free = free.max(input) + duration.0;
                    end[s][m][kind] = free;
                }
            }
        }
        end.iter().flatten().flatten().copied().fold(0.0, f64::max)
    }

    proptest! {
        #[test]
        fn lists_makespan_and_a_plain_simulation_agree(
            times in prop::collection::vec(0.01_f64..100.0, 1..12),
            multipliers in prop::collection::vec(0.5_f64..2.0, 1..6),
            share in 0.1_f64..0.9,
        ) {
            let stages = stage_times(&times, &multipliers, share);
            let simulated = simulate(&stages).makespan();
            let times: Vec<Millis> = times.iter().copied().map(Millis).collect();
            let fast = makespan(&times, &multipliers, share, &mut MakespanBuffers::default());
            prop_assert!(simulated.is_close(fast), "{} against {}", simulated.0, fast.0);
            prop_assert!(simulated.is_close(Millis(plain_makespan(&stages))));
        }
    }

    #[test]
    fn every_computation_appears_once() {
        let timeline = simulate(&stage_times(&[1.0, 2.0, 3.0], &[1.0, 1.0], 0.5));
        assert_eq!(timeline.spans.len(), 2 * 2 * 3);
    }
}
