//! A run's records as a table: one row for each planner under test, compared with the first.

use std::fmt;

use crate::numbers::{count, percentile};
use crate::record::Record;

/// One time of a planner under test over all batches, compared with the first planner's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Mean time.
    pub mean_ms: f64,
    /// Mean time over the first planner's mean time: a ratio of means.
    pub ratio: f64,
    /// Least ratio on one batch.
    pub least_ratio: f64,
    /// Greatest ratio on one batch.
    pub worst_ratio: f64,
}

/// Share of the transfer time that overlaps with computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlapped {
    /// Share over all batches.
    pub overall: f64,
    /// Share on the batch with the least overlap.
    pub least: f64,
}

/// One planner under test over all batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name of the planner under test.
    pub planner: String,
    /// Comparison of its iterations.
    pub iteration: Comparison,
    /// Comparison of its iterations with their transfers, if the run has a link model.
    pub step: Option<Comparison>,
    /// Overlap of its transfers, if the run has a link model.
    pub overlapped: Option<Overlapped>,
    /// Median planning time.
    pub plan_p50_ms: f64,
    /// Planning time that one batch in a hundred exceeds.
    pub plan_p99_ms: f64,
    /// Median gap to the lower bound, if there is one.
    pub median_gap: Option<f64>,
    /// Number of batches with a broken promise.
    pub broken: usize,
}

/// A row for each planner under test, in the order of the first batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Number of batches.
    pub batches: usize,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Summary {
    /// Summarises the records of a run: batch by batch, each with the same planners under test in the same order.
    pub fn of(records: &[Record]) -> Summary {
        let planners = records.iter().take_while(|record| record.batch == records[0].batch).count();
        let by_planner = |place: usize| -> Vec<&Record> { records.iter().skip(place).step_by(planners).collect() };
        let first = if planners == 0 { Vec::new() } else { by_planner(0) };
        let rows = (0..planners).map(|place| row(&by_planner(place), &first)).collect();
        Summary { batches: first.len(), rows }
    }
}

fn row(own: &[&Record], first: &[&Record]) -> Row {
    let sorted = |value: &dyn Fn(&Record) -> Option<f64>| {
        let mut values: Vec<f64> = own.iter().filter_map(|record| value(record)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let plan_ms = sorted(&|record| Some(record.plan_ms));
    let steps = |records: &[&Record]| records.iter().map(|record| record.step_ms).collect::<Option<Vec<f64>>>();
    let iterations = |records: &[&Record]| records.iter().map(|record| record.iteration_ms).collect::<Vec<f64>>();
    Row {
        planner: own[0].planner.clone(),
        iteration: Comparison::of(&iterations(own), &iterations(first)),
        overlapped: Overlapped::of(own),
        step: steps(own).zip(steps(first)).map(|(own, first)| Comparison::of(&own, &first)),
        plan_p50_ms: percentile(&plan_ms, 0.5).unwrap_or_default(),
        plan_p99_ms: percentile(&plan_ms, 0.99).unwrap_or_default(),
        median_gap: percentile(&sorted(&|record| record.gap), 0.5),
        broken: own.iter().filter(|record| !record.is_ok()).count(),
    }
}

impl Overlapped {
    fn of(records: &[&Record]) -> Option<Overlapped> {
        let times = |record: &&Record| record.transfer_ms.zip(record.transfer_alone_ms);
        let times = records.iter().map(times).collect::<Option<Vec<_>>>()?;
        // Without transfers the overlap is complete.
        let share = |added: f64, alone: f64| if alone > 0.0 { 1.0 - added / alone } else { 1.0 };
        let overall = share(times.iter().map(|time| time.0).sum(), times.iter().map(|time| time.1).sum());
        Some(Overlapped { overall, least: times.iter().map(|time| share(time.0, time.1)).fold(1.0, f64::min) })
    }
}

impl Comparison {
    /// Compares times of the same batches in the same order.
    fn of(own: &[f64], first: &[f64]) -> Comparison {
        let sum = |times: &[f64]| times.iter().sum::<f64>();
        let ratios = own.iter().zip(first).map(|(own, first)| own / first);
        Comparison {
            mean_ms: sum(own) / count(own.len()),
            ratio: sum(own) / sum(first),
            least_ratio: ratios.clone().fold(f64::INFINITY, f64::min),
            worst_ratio: ratios.fold(0.0, f64::max),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.rows.first().map_or("", |row| row.planner.as_str());
        let batches = if self.batches == 1 { "1 batch".into() } else { format!("{} batches", self.batches) };
        writeln!(f, "{batches}; ratios to {first}: of means, and the least and worst of a batch; times in ms")?;
        writeln!(f)?;
        let times = format!("{:>10} {:>7} {:>7} {:>7}", "iteration", "ratio", "least", "worst");
        writeln!(f, "{:<17} {times} {:>9} {:>9} {:>8} {:>7}", "planner", "plan p50", "plan p99", "gap p50", "broken")?;
        self.rows.iter().try_for_each(|row| row.fmt(f))?;
        if self.rows.iter().any(|row| row.step.is_some()) {
            writeln!(f)?;
            let columns = format!("{:>10} {:>7} {:>7} {:>7}", "step", "ratio", "least", "worst");
            writeln!(f, "{:<17} {columns} {:>9} {:>8} {:>8}", "with transfers", "transfer", "overlapped", "least")?;
        }
        self.rows.iter().filter_map(|row| Some((row, row.step?, row.overlapped?))).try_for_each(
            |(row, step, overlapped)| {
                let transfer = step.mean_ms - row.iteration.mean_ms;
                let Overlapped { overall, least } = overlapped;
                writeln!(
                    f,
                    "{:<17} {step} {transfer:>9.1} {:>6.1} % {:>6.1} %",
                    row.planner,
                    100.0 * overall,
                    100.0 * least
                )
            },
        )
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { mean_ms, ratio, least_ratio, worst_ratio } = self;
        write!(f, "{mean_ms:>10.1} {ratio:>7.3} {least_ratio:>7.3} {worst_ratio:>7.3}")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = self.median_gap.map_or_else(|| "-".into(), |gap| format!("{:.2} %", gap * 100.0));
        writeln!(
            f,
            "{:<17} {} {:>9.2} {:>9.2} {gap:>8} {:>7}",
            self.planner, self.iteration, self.plan_p50_ms, self.plan_p99_ms, self.broken
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(batch: usize, planner: &str, iteration_ms: f64, plan_ms: f64, gap: Option<f64>) -> Record {
        let status = if iteration_ms > 0.0 { "ok".into() } else { "sequence_missing".into() };
        Record {
            batch,
            sequences: 1,
            tokens: 1,
            longest: 1,
            planner: planner.into(),
            strategy: "1x<1>".into(),
            plan_ms,
            iteration_ms,
            transfer_ms: None,
            transfer_alone_ms: None,
            step_ms: None,
            lower_bound_ms: gap.map(|_| 1.0),
            gap,
            micro_batches: 1,
            status,
        }
    }

    #[test]
    fn ratios_are_of_means_and_extremes_of_batches() {
        let records = [
            record(0, "one", 100.0, 1.0, Some(0.1)),
            record(0, "two", 300.0, 7.0, None),
            record(1, "one", 300.0, 3.0, Some(0.3)),
            record(1, "two", 300.0, 5.0, None),
        ];
        let summary = Summary::of(&records);
        assert_eq!(summary.batches, 2);
        let two = &summary.rows[1];
        let expected = Comparison { mean_ms: 300.0, ratio: 1.5, least_ratio: 1.0, worst_ratio: 3.0 };
        assert_eq!((two.planner.as_str(), two.iteration, two.step, two.median_gap), ("two", expected, None, None));
        assert_eq!((two.plan_p50_ms, two.plan_p99_ms, two.broken), (5.0, 7.0, 0));
        assert_eq!(summary.rows[0].median_gap, Some(0.1));
        let text = summary.to_string();
        assert!(text.starts_with("2 batches; ratios to one"), "{text}");
        assert_eq!(text.lines().count(), 5);
    }

    #[test]
    fn steps_are_compared_where_there_are_links() {
        let with = |record: Record, transfer: f64| Record {
            step_ms: Some(record.iteration_ms + transfer),
            transfer_ms: Some(transfer),
            transfer_alone_ms: Some(200.0),
            ..record
        };
        let records = [
            with(record(0, "one", 100.0, 1.0, None), 50.0),
            with(record(0, "two", 200.0, 1.0, None), 100.0),
            with(record(1, "one", 300.0, 1.0, None), 150.0),
            with(record(1, "two", 600.0, 1.0, None), 20.0),
        ];
        let summary = Summary::of(&records);
        let steps = summary.rows[1].step.expect("a link");
        assert_eq!((steps.mean_ms, steps.least_ratio, steps.worst_ratio), (460.0, 620.0 / 450.0, 2.0));
        assert_eq!(summary.rows[0].overlapped, Some(Overlapped { overall: 0.5, least: 0.25 }));
        assert_eq!(summary.rows[1].overlapped, Some(Overlapped { overall: 0.7, least: 0.5 }));
        assert_eq!(summary.to_string().lines().count(), 9);
    }

    #[test]
    fn no_records_make_no_rows() {
        assert_eq!(Summary::of(&[]), Summary { batches: 0, rows: Vec::new() });
    }
}
