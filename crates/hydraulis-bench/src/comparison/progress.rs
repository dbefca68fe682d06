//! Progress lines on standard error.

use std::time::{Duration, Instant};

use crate::comparison::complain;

/// Time before the first line, and between two lines.
const PAUSE: Duration = Duration::from_secs(2);

/// The time of the last line.
pub(crate) struct Progress {
    batches: usize,
    last: Instant,
}

impl Progress {
    pub(crate) fn new(batches: usize) -> Progress {
        Progress { batches, last: Instant::now() }
    }

    /// Reports that a planner under test prepares: one that keeps one strategy reads all batches first.
    pub(crate) fn preparing(&mut self, planner: &str) {
        self.say(|batches| format!("preparing {planner} for {batches} batches"));
    }

    /// Reports that a planner under test planned a batch.
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
