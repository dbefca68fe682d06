//! Estimated capacity for more micro-batches than the table has.
//!
//! A pipeline fills and drains over a few micro-batches at each end, for any number of them: a longer one has the same
//! head and tail, and more micro-batches as long as those between. This is an estimate, not a bound.

use std::borrow::Cow;

use crate::capacity::PipelineCapacity;
use crate::units::count;

/// A capacity with more micro-batches in its middle.
pub(super) struct ExtendedCapacity<'a> {
    capacity: &'a PipelineCapacity,
    more: usize,
    /// Its end, in ends of the tabulated capacity.
    stretch: f64,
}

impl<'a> ExtendedCapacity<'a> {
    /// The capacity with `more` additional micro-batches, on stages of which the slowest has this multiplier; with none
    /// it is the tabulated one.
    pub(super) fn new(capacity: &'a PipelineCapacity, more: usize, slowest: f64) -> ExtendedCapacity<'a> {
        ExtendedCapacity { capacity, more, stretch: 1.0 + capacity.level() * slowest * count(more) }
    }

    /// Estimated end of that much work, as by [`PipelineCapacity::end`].
    pub(super) fn end(&self, work: f64, fixed: f64) -> f64 {
        let more = count(self.more);
        self.stretch * self.capacity.end_with_more(self.capacity.level() * more, work + fixed * more, fixed)
    }

    /// The times of its micro-batches, in running order, as shares of its end.
    pub(super) fn shape(&self) -> Cow<'a, [f64]> {
        let shape = self.capacity.shape();
        if self.more == 0 {
            return Cow::Borrowed(shape);
        }
        let (head, tail) = shape.split_at(shape.len() / 2);
        let middle = std::iter::repeat_n(self.capacity.level(), self.more);
        head.iter().copied().chain(middle).chain(tail.iter().copied()).map(|time| time / self.stretch).collect()
    }

    /// The longest of these times.
    pub(super) fn longest(&self) -> f64 {
        self.capacity.shape().iter().copied().fold(0.0, f64::max) / self.stretch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{MakespanBuffers, makespan};
    use crate::spec::CapacityBudget;
    use crate::units::Millis;

    /// Its times end at the stated time, and hold the stated work, within 2 %: the tabulated capacity is itself found
    /// within 0.2 to 0.5 %.
    #[test]
    fn an_extended_capacity_ends_at_its_stated_time() {
        for multipliers in [vec![1.0; 2], vec![1.0; 8], vec![1.0, 1.2, 1.0, 0.7]] {
            let slowest = multipliers.iter().copied().fold(0.0, f64::max);
            for (micro_batches, share) in [(32, 0.01), (40, 0.01)] {
                let capacity =
                    PipelineCapacity::new(&multipliers, 1.0 / 3.0, micro_batches, share, CapacityBudget::ONLINE);
                for more in [0, 1, 7, 100, 1_000] {
                    let long = ExtendedCapacity::new(&capacity, more, slowest);
                    let times: Vec<Millis> = long.shape().iter().copied().map(Millis).collect();
                    assert_eq!(times.len(), micro_batches + more);
                    assert_eq!(times.iter().max(), Some(&Millis(long.longest())));
                    let end = makespan(&times, &multipliers, 1.0 / 3.0, &mut MakespanBuffers::default()).0;
                    let fixed = share / long.stretch;
                    let work = times.iter().map(|time| time.0 - fixed).sum();
                    assert!((end - 1.0).abs() < 0.02, "{multipliers:?} {micro_batches} {more}: {end}");
                    assert!((long.end(work, fixed) - 1.0).abs() < 0.02, "{multipliers:?} {micro_batches} {more}");
                }
            }
        }
    }
}
