//! Judged records of several planners on the same batches.

use hydraulis_bench::planner_under_test::PlannerUnderTest;
use hydraulis_bench::record::Record;
use hydraulis_bench::run::run;
use hydraulis_bench::{Error, Result};
use hydraulis_core::Tokens;
use hydraulis_core::batch::Batch;
use hydraulis_core::cost::CostModel;

/// The records of each planner, one for each batch; an error if a plan breaks a promise.
pub(crate) fn records(
    cost: &CostModel,
    mut planners: Vec<PlannerUnderTest>,
    batches: &[Batch],
) -> Result<Vec<Vec<Record>>> {
    let mut records: Vec<Vec<Record>> = vec![Vec::new(); planners.len()];
    let mut place = 0;
    run(cost, &mut planners, batches, None, |record, violations| {
        if let Some(broken) = violations.first() {
            return Err(Error::PlanBroken { code: broken.code, detail: broken.detail.clone() });
        }
        let count = records.len();
        records[place % count].push(record);
        place += 1;
        Ok(())
    })?;
    Ok(records)
}

/// The mean of a figure over records.
pub(crate) fn mean(records: &[Record], figure: impl Fn(&Record) -> f64) -> f64 {
    records.iter().map(figure).sum::<f64>() / Tokens(records.len() as u64).as_f64()
}
