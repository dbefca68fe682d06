//! A run's records as a table: one row for each contender, compared with the first.

use std::fmt;

use crate::numbers::{count, percentile};
use crate::record::Record;

/// One contender over all batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The contender.
    pub planner: &'static str,
    /// Mean simulated time of an iteration.
    pub mean_ms: f64,
    /// That mean over the first contender's: a ratio of means.
    pub ratio: f64,
    /// The least ratio on one batch.
    pub least_ratio: f64,
    /// The greatest ratio on one batch.
    pub worst_ratio: f64,
    /// Median planning time.
    pub plan_p50_ms: f64,
    /// Planning time that one batch in a hundred exceeds.
    pub plan_p99_ms: f64,
    /// Median gap to the bound, where there is one.
    pub median_gap: Option<f64>,
    /// Batches of which some promise was broken.
    pub broken: usize,
}

/// A row for each contender, in the order of the first batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Number of batches.
    pub batches: usize,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Summary {
    /// Sums up the records of a run: batch by batch, each with the same contenders in the same order.
    pub fn of(records: &[Record]) -> Summary {
        let contenders = records.iter().take_while(|record| record.batch == records[0].batch).count();
        let by_contender = |place: usize| -> Vec<&Record> { records.iter().skip(place).step_by(contenders).collect() };
        let first = if contenders == 0 { Vec::new() } else { by_contender(0) };
        let rows = (0..contenders).map(|place| row(&by_contender(place), &first)).collect();
        Summary { batches: first.len(), rows }
    }
}

fn row(own: &[&Record], first: &[&Record]) -> Row {
    let sorted = |value: &dyn Fn(&Record) -> Option<f64>| {
        let mut values: Vec<f64> = own.iter().filter_map(|record| value(record)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let sum = |records: &[&Record]| records.iter().map(|record| record.iteration_ms).sum::<f64>();
    let ratios = own.iter().zip(first).map(|(own, first)| own.iteration_ms / first.iteration_ms);
    let plan_ms = sorted(&|record| Some(record.plan_ms));
    Row {
        planner: own[0].planner,
        mean_ms: sum(own) / count(own.len()),
        ratio: sum(own) / sum(first),
        least_ratio: ratios.clone().fold(f64::INFINITY, f64::min),
        worst_ratio: ratios.fold(0.0, f64::max),
        plan_p50_ms: percentile(&plan_ms, 0.5).unwrap_or_default(),
        plan_p99_ms: percentile(&plan_ms, 0.99).unwrap_or_default(),
        median_gap: percentile(&sorted(&|record| record.gap), 0.5),
        broken: own.iter().filter(|record| !record.is_ok()).count(),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.rows.first().map_or("", |row| row.planner);
        let batches = if self.batches == 1 { "1 batch".into() } else { format!("{} batches", self.batches) };
        writeln!(f, "{batches}; ratios to {first}: of means, and the least and worst of a batch; times in ms")?;
        writeln!(f)?;
        writeln!(
            f,
            "{:<17} {:>10} {:>7} {:>7} {:>7} {:>9} {:>9} {:>8} {:>7}",
            "planner", "iteration", "ratio", "least", "worst", "plan p50", "plan p99", "gap p50", "broken"
        )?;
        self.rows.iter().try_for_each(|row| row.fmt(f))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = self.median_gap.map_or_else(|| "-".into(), |gap| format!("{:.2} %", gap * 100.0));
        writeln!(
            f,
            "{:<17} {:>10.1} {:>7.3} {:>7.3} {:>7.3} {:>9.2} {:>9.2} {gap:>8} {:>7}",
            self.planner,
            self.mean_ms,
            self.ratio,
            self.least_ratio,
            self.worst_ratio,
            self.plan_p50_ms,
            self.plan_p99_ms,
            self.broken
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(batch: usize, planner: &'static str, iteration_ms: f64, plan_ms: f64, gap: Option<f64>) -> Record {
        let status = if iteration_ms > 0.0 { "ok".into() } else { "sequence_missing".into() };
        Record {
            batch,
            sequences: 1,
            tokens: 1,
            longest: 1,
            planner,
            strategy: "1x<1>".into(),
            plan_ms,
            iteration_ms,
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
        assert_eq!((two.planner, two.mean_ms, two.ratio), ("two", 300.0, 1.5));
        assert_eq!((two.least_ratio, two.worst_ratio, two.median_gap), (1.0, 3.0, None));
        assert_eq!((two.plan_p50_ms, two.plan_p99_ms, two.broken), (5.0, 7.0, 0));
        assert_eq!(summary.rows[0].median_gap, Some(0.1));
        let text = summary.to_string();
        assert!(text.starts_with("2 batches; ratios to one"), "{text}");
        assert_eq!(text.lines().count(), 5);
    }

    #[test]
    fn no_records_make_no_rows() {
        assert_eq!(Summary::of(&[]), Summary { batches: 0, rows: Vec::new() });
    }
}
