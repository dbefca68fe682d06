//! The figures of a comparison over some batches.

use crate::exhaustive::Compared;
use crate::numbers::{count, percentile};

/// Share by which a search may be longer than the best mix before the batch counts as lost.
pub const LOST: f64 = 0.002;

/// The ratios, gaps and planning times of some batches.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    ratios: Vec<f64>,
    gaps: Vec<f64>,
    plan_ms: Vec<f64>,
}

impl Figures {
    /// Adds a batch.
    pub fn add(&mut self, compared: &Compared) {
        self.ratios.push(compared.ratio());
        self.gaps.push(compared.plan.gap());
        self.plan_ms.push(compared.plan_ms);
    }

    /// Adds the batches of other figures.
    pub fn join(&mut self, other: &Figures) {
        self.ratios.extend(&other.ratios);
        self.gaps.extend(&other.gaps);
        self.plan_ms.extend(&other.plan_ms);
    }

    /// The names of the cells of a row.
    pub const HEADER: [&str; 8] = ["batches", "worst", "mean", "lost", "gap p50", "gap max", "p50 ms", "p99 ms"];

    /// Number of batches; worst and mean ratio of the search to the best mix; batches lost; median and worst gap in
    /// percent; median and 99th percentile of the planning time in ms.
    pub fn row(&self) -> [String; 8] {
        let batches = self.ratios.len();
        let mean = self.ratios.iter().sum::<f64>() / count(batches);
        let lost = self.ratios.iter().filter(|ratio| **ratio > 1.0 + LOST).count();
        let percent = |share: f64| format!("{:.2}", 100.0 * at(&self.gaps, share));
        [
            batches.to_string(),
            format!("{:.4}", at(&self.ratios, 1.0)),
            format!("{mean:.4}"),
            lost.to_string(),
            percent(0.5),
            percent(1.0),
            format!("{:.1}", at(&self.plan_ms, 0.5)),
            format!("{:.1}", at(&self.plan_ms, 0.99)),
        ]
    }
}

/// A percentile; not a number without values.
fn at(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, share).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_worst_the_mean_and_the_lost() {
        let mut figures =
            Figures { ratios: vec![0.99, 1.001, 1.0], gaps: vec![0.02, 0.01, 0.0], plan_ms: vec![4.0, 9.0, 6.0] };
        assert_eq!(figures.row(), ["3", "1.0010", "0.9970", "0", "1.00", "2.00", "6.0", "9.0"]);
        figures.join(&Figures { ratios: vec![1.013], gaps: vec![0.05], plan_ms: vec![1.0] });
        assert_eq!(figures.row(), ["4", "1.0130", "1.0010", "1", "1.00", "5.00", "4.0", "9.0"]);
    }
}
