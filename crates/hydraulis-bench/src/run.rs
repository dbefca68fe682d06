//! Runs every planner under test on every batch, and times it.

use std::time::Duration;

use hydraulis_core::batch::Batch;
use hydraulis_core::check::Violation;
use hydraulis_core::cost::CostModel;
use hydraulis_core::timing::Link;
use rustix::time::{ClockId, clock_gettime};

use crate::error::Result;
use crate::judge::{Judge, Verdict};
use crate::planner_under_test::PlannerUnderTest;
use crate::record::Record;

/// Plans each batch with each planner under test, and judges the answers.
///
/// `report` receives each record at once, with the broken promises. The planners take turns on a batch, so that other
/// load of the machine affects all of them equally. Transfers are recorded if there is a `link`.
pub fn run(
    cost: &CostModel,
    planners: &mut [PlannerUnderTest],
    batches: &[Batch],
    link: Option<&Link>,
    mut report: impl FnMut(Record, &[Violation]) -> Result<()>,
) -> Result<()> {
    let mut judge = Judge::new(cost, link);
    for (index, batch) in batches.iter().enumerate() {
        for planner in planners.iter_mut() {
            let (answer, plan_ms) = timed(|| planner.decide(batch));
            let verdict = judge.judge(&answer?, batch)?;
            report(record(index, batch, planner, plan_ms, &verdict), &verdict.violations)?;
        }
    }
    Ok(())
}

fn record(index: usize, batch: &Batch, planner: &PlannerUnderTest, plan_ms: f64, verdict: &Verdict) -> Record {
    Record {
        batch: index,
        sequences: batch.len(),
        tokens: batch.total_tokens().0,
        longest: batch.longest().1.0,
        planner: planner.name.clone(),
        strategy: verdict.strategy.clone(),
        plan_ms,
        iteration_ms: verdict.iteration_ms.0,
        transfer_ms: verdict.transfers.map(|transfers| transfers.transfer_ms.0),
        transfer_alone_ms: verdict.transfers.map(|transfers| transfers.alone_ms.0),
        step_ms: verdict.transfers.map(|transfers| (verdict.iteration_ms + transfers.transfer_ms).0),
        lower_bound_ms: verdict.bound.map(|(ms, _)| ms.0),
        gap: verdict.bound.map(|(_, gap)| gap),
        micro_batches: verdict.micro_batches,
        status: verdict.status(),
    }
}

/// CPU time of the calling thread: the time on a quiet machine, however busy this one is.
fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    Duration::from_secs(seconds.unwrap_or_default()) + Duration::from_nanos(nanoseconds.unwrap_or_default())
}

/// The result of `work`, and its CPU time on this thread in ms.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = thread_cpu();
    let done = work();
    (done, thread_cpu().saturating_sub(start).as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_and_sleep_takes_none() {
        let sum = || (0..3_000_000_u64).fold(1, |x: u64, y| x.wrapping_mul(6_364_136_223_846_793_005) ^ y);
        let (result, worked_ms) = timed(sum);
        assert!(result != 0 && worked_ms > 0.0);
        let ((), slept_ms) = timed(|| std::thread::sleep(Duration::from_millis(60)));
        assert!(slept_ms < 30.0, "{slept_ms}");
    }
}
