//! The time of a replica for an amount of work, at its best number of micro-batches.

use std::sync::OnceLock;

use crate::spec::CapacityBudget;
use crate::units::{count, whole};

/// A table of the best times, computed on first use.
#[derive(Debug)]
pub(super) struct WorkTable {
    unit: f64,
    /// Amounts of work per doubling.
    steps: usize,
    doublings: usize,
    points: Vec<OnceLock<Point>>,
}

/// The best time for one amount of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) micro_batches: usize,
    pub(super) end: f64,
    /// The longest of these micro-batches.
    pub(super) longest: f64,
}

impl WorkTable {
    /// A table for work of `unit` and above.
    pub(super) fn new(unit: f64, budget: CapacityBudget) -> WorkTable {
        let (steps, doublings) = (budget.work_steps, budget.work_doublings);
        WorkTable { unit, steps, doublings, points: vec![OnceLock::new(); steps * doublings + 1] }
    }

    /// The best for about `work`: the count of the nearest amount below, and a time interpolated between its
    /// neighbours'.
    pub(super) fn at(&self, work: f64, best: impl Fn(f64) -> Point) -> Point {
        let units = work / self.unit;
        if units < 1.0 {
            let least = self.point(0, &best);
            let share = units.max(0.0);
            return Point { end: least.end * share, longest: least.longest * share, ..least };
        }
        let (doubling, steps) = self.place(units);
        let step = usize::try_from(whole(steps)).unwrap_or(self.steps).min(self.steps - 1);
        let index = doubling * self.steps + step;
        let (below, above) = (self.point(index, &best), self.point(index + 1, &best));
        let fraction = steps - count(step);
        let between = |below: f64, above: f64| below + (above - below) * fraction;
        Point { end: between(below.end, above.end), longest: between(below.longest, above.longest), ..below }
    }

    fn point(&self, index: usize, best: impl Fn(f64) -> Point) -> Point {
        *self.points[index].get_or_init(|| {
            let (doubling, step) = (index / self.steps, index % self.steps);
            let scale = (0..doubling).fold(1.0, |scale, _| 2.0 * scale);
            best(self.unit * scale * (1.0 + count(step) / count(self.steps)))
        })
    }

    /// The power of two at or below `units`, which is 1 or more, and the number of steps above it.
    fn place(&self, units: f64) -> (usize, f64) {
        // The exponent is in the bits above the 52 of the fraction.
        let exponent = usize::try_from(units.to_bits() >> 52).unwrap_or(usize::MAX);
        let doubling = exponent.saturating_sub(1023).min(self.doublings - 1);
        let scale = count(1_u64 << doubling);
        (doubling, (units / scale - 1.0) * count(self.steps))
    }
}
