//! Signs of life on standard error, for a run that takes a while.

use std::time::{Duration, Instant};

use crate::complain;

/// Silence until this has passed, and between two lines.
const PAUSE: Duration = Duration::from_secs(2);

/// What was last said, and when.
pub(crate) struct Progress {
    batches: usize,
    last: Instant,
}

impl Progress {
    pub(crate) fn new(batches: usize) -> Progress {
        Progress { batches, last: Instant::now() }
    }

    /// A planner under test that keeps one strategy looks at all batches first.
    pub(crate) fn preparing(&mut self, planner: &str) {
        self.say(|batches| format!("preparing {planner} for {batches} batches"));
    }

    /// A planner under test planned a batch.
    pub(crate) fn planned(&mut self, batch: usize) {
        self.say(|batches| format!("batch {} of {batches}", batch + 1));
    }

    fn say(&mut self, line: impl FnOnce(usize) -> String) {
        if self.last.elapsed() >= PAUSE {
            self.last = Instant::now();
            complain(&line(self.batches));
        }
    }
}
