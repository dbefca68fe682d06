//! The simulator's instructions per second of CPU time.

use std::fmt;

use hydraulis_core::Millis;
use hydraulis_core::pipeline::{StageTimes, instructions, simulate};

use crate::numbers::count;
use crate::run::timed;

/// The measurement for pipelines of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    stages: usize,
    micro_batches: usize,
    /// Number of instructions run.
    instructions: usize,
    cpu_ms: f64,
}

impl Rate {
    /// Simulates a pipeline repeatedly until at least `instructions` have run; the creation of the lists counts.
    pub fn measure(stages: usize, micro_batches: usize, instructions: usize) -> Rate {
        let times = pipeline(stages, micro_batches);
        let each: usize = (0..stages).map(|stage| self::instructions(stage, stages, micro_batches).len()).sum();
        let runs = instructions.div_ceil(each);
        let (ends, cpu_ms) = timed(|| (0..runs).map(|_| simulate(&times).makespan()).sum::<Millis>());
        assert!(ends > Millis::ZERO, "a pipeline takes time");
        Rate { stages, micro_batches, instructions: runs * each, cpu_ms }
    }

    /// Instructions per second.
    pub fn per_second(&self) -> f64 {
        1e3 * count(self.instructions) / self.cpu_ms
    }

    /// The head of a table of rates.
    pub fn header() -> String {
        format!(
            "{:>6} {:>13} {:>13} {:>8} {:>17}",
            "stages", "micro-batches", "instructions", "CPU ms", "instructions/s"
        )
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rate { stages, micro_batches, instructions, cpu_ms } = self;
        let per_second = self.per_second() / 1e6;
        write!(f, "{stages:>6} {micro_batches:>13} {instructions:>13} {cpu_ms:>8.1} {per_second:>15.1} M")
    }
}

/// Micro-batches of unequal times on stages of unequal speed, so that stages wait for one another.
fn pipeline(stages: usize, micro_batches: usize) -> Vec<StageTimes> {
    let times = |stage: usize, share: usize| {
        let time = |micro_batch: usize| Millis(count(share * (100 + (37 * micro_batch + 11 * stage) % 61)));
        (0..micro_batches).map(time).collect()
    };
    (0..stages).map(|stage| StageTimes { forward: times(stage, 1), backward: times(stage, 2) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_the_simulated_instructions() {
        // A single stage has no neighbour to exchange with: 12 computations per run.
        assert_eq!(Rate::measure(1, 6, 30).instructions, 36);
        let rate = Rate { stages: 4, micro_batches: 6, instructions: 3_000, cpu_ms: 2.0 };
        assert_eq!(rate.per_second().to_string(), "1500000");
        assert_eq!(Rate::header().len(), rate.to_string().len());
    }
}
