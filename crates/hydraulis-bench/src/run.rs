//! Runs every planner under test on every batch.

use hydraulis_core::batch::Batch;
use hydraulis_core::check::Violation;
use hydraulis_core::cost::CostModel;
use hydraulis_core::timing::Link;

use crate::clock::timed;
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
