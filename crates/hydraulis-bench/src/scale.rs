//! The growth of planning time with the cluster and the batch.

use std::fmt;

use hydraulis_core::Tokens;

use crate::numbers::{count, percentile};
use crate::record::Record;

/// Times of a planner under test for batches of one size on a cluster of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// GPUs of the cluster.
    pub gpus: u32,
    /// Mean tokens of a batch.
    pub tokens: f64,
    /// Mean sequences of a batch.
    pub sequences: f64,
    /// CPU time of planning the first batch, including the creation of the planner's tables.
    pub first_plan_ms: f64,
    /// Mean CPU time of planning the other batches; the first one's if it is the only batch.
    pub plan_ms: f64,
    /// Greatest CPU time of planning one of the other batches.
    pub worst_plan_ms: f64,
    /// Mean simulated iteration time.
    pub iteration_ms: f64,
    /// Median gap to the lower bound, if there is one.
    pub gap: Option<f64>,
}

impl Point {
    /// The point of at least one batch, all planned by one planner under test in this order.
    pub fn of(gpus: u32, records: &[Record]) -> Point {
        let mean = |value: &dyn Fn(&Record) -> f64| records.iter().map(value).sum::<f64>() / count(records.len());
        let times: Vec<f64> = records.iter().map(|record| record.plan_ms).collect();
        let later = if times.len() > 1 { &times[1..] } else { &times };
        let mut gaps: Vec<f64> = records.iter().filter_map(|record| record.gap).collect();
        gaps.sort_by(f64::total_cmp);
        Point {
            gpus,
            tokens: mean(&|record| Tokens(record.tokens).as_f64()),
            sequences: mean(&|record| count(record.sequences)),
            first_plan_ms: times.first().copied().unwrap_or_default(),
            plan_ms: later.iter().sum::<f64>() / count(later.len()),
            worst_plan_ms: later.iter().copied().fold(0.0, f64::max),
            iteration_ms: mean(&|record| record.iteration_ms),
            gap: percentile(&gaps, 0.5),
        }
    }

    /// The line above a table of points.
    pub fn header() -> String {
        let [tokens, sequences, first, plan, worst] = ["tokens", "sequences", "first", "plan CPU ms", "worst"];
        format!(
            "{:>6} {tokens:>11} {sequences:>9} {first:>8} {plan:>12} {worst:>9} {:>12} {:>8}",
            "GPUs", "iteration ms", "gap p50"
        )
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { gpus, tokens, sequences, first_plan_ms, plan_ms, worst_plan_ms, iteration_ms, gap } = self;
        let gap = gap.map_or_else(|| "-".into(), |gap| format!("{:.2} %", gap * 100.0));
        write!(
            f,
            "{gpus:>6} {tokens:>11.0} {sequences:>9.0} {first_plan_ms:>8.1} {plan_ms:>12.1} {worst_plan_ms:>9.1} "
        )?;
        write!(f, "{iteration_ms:>12.1} {gap:>8}")
    }
}

/// Planning time as `GPUs^x sequences^y`, by least squares on logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponents {
    /// `x`.
    pub gpus: f64,
    /// `y`.
    pub sequences: f64,
    /// Share of the logarithms' variance that the power law explains.
    pub explained: f64,
}

impl Exponents {
    /// Fits the power law to these points; none if GPUs and sequences do not vary independently.
    pub fn fit(points: &[Point]) -> Option<Exponents> {
        let logarithms =
            |value: &dyn Fn(&Point) -> f64| centred(points.iter().map(|point| value(point).ln()).collect());
        let gpus = logarithms(&|point| f64::from(point.gpus));
        let sequences = logarithms(&|point| point.sequences);
        let time = logarithms(&|point| point.plan_ms);
        let (gg, ss, gs) = (dot(&gpus, &gpus), dot(&sequences, &sequences), dot(&gpus, &sequences));
        let (gt, st, tt) = (dot(&gpus, &time), dot(&sequences, &time), dot(&time, &time));
        let determinant = gg * ss - gs * gs;
        // Drawn batches of the same tokens differ by a few sequences, which must not count as variation.
        if determinant <= 1e-3 * gg * ss || determinant.is_nan() {
            return None;
        }
        let (x, y) = ((gt * ss - st * gs) / determinant, (st * gg - gt * gs) / determinant);
        Some(Exponents { gpus: x, sequences: y, explained: (x * gt + y * st) / tt })
    }
}

impl fmt::Display for Exponents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exponents { gpus, sequences, explained } = self;
        write!(f, "plan CPU ms ~ GPUs^{gpus:.2} sequences^{sequences:.2} (r2 = {explained:.3})")
    }
}

/// The values minus their mean.
fn centred(values: Vec<f64>) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / count(values.len());
    values.into_iter().map(|value| value - mean).collect()
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(gpus: u32, sequences: f64, plan_ms: f64) -> Point {
        let (first_plan_ms, worst_plan_ms) = (plan_ms, plan_ms);
        Point { gpus, tokens: 1.0, sequences, first_plan_ms, plan_ms, worst_plan_ms, iteration_ms: 1.0, gap: None }
    }

    #[test]
    fn a_power_law_is_found() {
        let law = |gpus: u32, sequences: f64| 0.03 * f64::from(gpus).powf(1.5) * sequences.powf(0.75);
        // As in a run, larger clusters have larger batches.
        let grid = [(64, 200.0), (64, 900.0), (256, 700.0), (256, 1_600.0), (1_024, 3_000.0), (1_024, 7_000.0)];
        let points: Vec<Point> =
            grid.iter().map(|&(gpus, sequences)| point(gpus, sequences, law(gpus, sequences))).collect();
        let fitted = Exponents::fit(&points).unwrap();
        assert!((fitted.gpus - 1.5).abs() < 1e-9 && (fitted.sequences - 0.75).abs() < 1e-9, "{fitted}");
        assert!((fitted.explained - 1.0).abs() < 1e-9, "{fitted}");
    }

    #[test]
    fn variables_that_change_together_have_no_exponents() {
        let along = [64, 256, 1_024].map(|gpus| point(gpus, f64::from(gpus) * 5.0, f64::from(gpus)));
        assert_eq!(Exponents::fit(&along), None);
        let one_size = [100.0, 200.0].map(|sequences| point(64, sequences, sequences));
        assert_eq!(Exponents::fit(&one_size), None);
        assert_eq!(Exponents::fit(&[]), None);
    }
}
