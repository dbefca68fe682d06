//! Fits a scheme's coefficients to measured micro-batches.
//!
//! Least squares on *relative* errors (a long micro-batch would otherwise drown the short ones), with all
//! three coefficients at least zero: a negative one would make some length cheaper than none. With three
//! unknowns the non-negative optimum is found exactly, by solving every subset of them and keeping the best
//! that is feasible (Lawson and Hanson 1974, chapter 23, states the optimality of such a subset).

use crate::error::{Error, Result};
use crate::units::{Millis, Tokens, count};

/// One timed micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Lengths of its sequences.
    pub sequences: Vec<Tokens>,
    /// Time of one stage, forward and backward.
    pub ms: Millis,
}

/// Coefficients, and how well they explain the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostFit {
    /// `a`, in ms per squared token.
    pub quadratic_ms_per_token2: f64,
    /// `b`, in ms per token.
    pub linear_ms_per_token: f64,
    /// `c`, in ms per micro-batch.
    pub fixed_ms: f64,
    /// Root mean square of the relative errors.
    pub relative_error: f64,
}

/// The coefficients a, b, c >= 0 with the least sum of squared relative errors.
pub fn fit(measurements: &[Measurement]) -> Result<CostFit> {
    let refuse = |why: &str| Err(Error::FitPoints { why: why.into() });
    if measurements.iter().any(|point| !(point.ms.0.is_finite() && point.ms.0 > 0.0)) {
        return refuse("a measured time is not a finite number above 0");
    }
    if distinct_totals(measurements) < 3 {
        return refuse("there are fewer than three micro-batches of different total length");
    }
    let rows: Vec<[f64; 3]> = measurements.iter().map(features).collect();
    let scale = [0, 1, 2].map(|column| rows.iter().map(|row| row[column]).fold(0.0, f64::max));
    let rows: Vec<[f64; 3]> = rows.iter().map(|row| [0, 1, 2].map(|column| row[column] / scale[column])).collect();
    let solutions = (1_u8..8).filter_map(|subset| solve(&rows, subset)).filter(|x| x.iter().all(|v| *v >= 0.0));
    let best = solutions.min_by(|x, y| squared_error(&rows, x).total_cmp(&squared_error(&rows, y)));
    let Some(best) = best else { return refuse("no non-negative coefficients explain the times") };
    Ok(CostFit {
        quadratic_ms_per_token2: best[0] / scale[0],
        linear_ms_per_token: best[1] / scale[1],
        fixed_ms: best[2] / scale[2],
        relative_error: (squared_error(&rows, &best) / count(rows.len())).sqrt(),
    })
}

fn distinct_totals(measurements: &[Measurement]) -> usize {
    let mut totals: Vec<Tokens> = measurements.iter().map(|point| point.sequences.iter().copied().sum()).collect();
    totals.sort_unstable();
    totals.dedup();
    totals.len()
}

/// Sum of squares, sum, one: each divided by the time, so that the fitted value is 1.
fn features(point: &Measurement) -> [f64; 3] {
    let squares: f64 = point.sequences.iter().map(|tokens| tokens.as_f64() * tokens.as_f64()).sum();
    let tokens: f64 = point.sequences.iter().map(|tokens| tokens.as_f64()).sum();
    [squares / point.ms.0, tokens / point.ms.0, 1.0 / point.ms.0]
}

fn squared_error(rows: &[[f64; 3]], x: &[f64; 3]) -> f64 {
    rows.iter().map(|row| (row[0] * x[0] + row[1] * x[1] + row[2] * x[2] - 1.0).powi(2)).sum()
}

/// The unconstrained optimum with only the columns of `subset` (a bit mask), by Gaussian elimination.
fn solve(rows: &[[f64; 3]], subset: u8) -> Option<[f64; 3]> {
    let columns: Vec<usize> = (0..3).filter(|column| subset & (1 << column) != 0).collect();
    let n = columns.len();
    let mut system = vec![vec![0.0; n + 1]; n];
    for row in rows {
        for (i, &left) in columns.iter().enumerate() {
            for (j, &right) in columns.iter().enumerate() {
                system[i][j] += row[left] * row[right];
            }
            system[i][n] += row[left];
        }
    }
    eliminate(&mut system)?;
    let mut x = [0.0; 3];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|j| system[i][j] * x[columns[j]]).sum();
        x[columns[i]] = (system[i][n] - known) / system[i][i];
    }
    Some(x)
}

/// Brings a symmetric system to triangular form; none where its columns depend on each other.
fn eliminate(system: &mut [Vec<f64>]) -> Option<()> {
    let n = system.len();
    for pivot in 0..n {
        let (above, below) = system.split_at_mut(pivot + 1);
        let row = &above[pivot];
        // Features are scaled to at most 1, so a pivot this small means dependent columns, not small units.
        if row[pivot] < 1e-12 {
            return None;
        }
        for other in below {
            let factor = other[pivot] / row[pivot];
            for column in pivot..=n {
                other[column] -= factor * row[column];
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(sequences: &[u64], ms: f64) -> Measurement {
        Measurement { sequences: sequences.iter().copied().map(Tokens).collect(), ms: Millis(ms) }
    }

    fn true_time(sequences: &[u64]) -> f64 {
        sequences.iter().map(|&s| 2e-6 * count(s).powi(2) + 0.1 * count(s)).sum::<f64>() + 30.0
    }

    #[test]
    fn exact_times_give_back_the_coefficients() {
        let mixes: [&[u64]; 5] = [&[128], &[1024], &[8192], &[512, 512, 512], &[4096, 64]];
        let points: Vec<Measurement> = mixes.iter().map(|mix| point(mix, true_time(mix))).collect();
        let fitted = fit(&points).unwrap();
        assert!((fitted.quadratic_ms_per_token2 / 2e-6 - 1.0).abs() < 1e-6);
        assert!((fitted.linear_ms_per_token / 0.1 - 1.0).abs() < 1e-6);
        assert!((fitted.fixed_ms / 30.0 - 1.0).abs() < 1e-6);
        assert!(fitted.relative_error < 1e-9);
    }

    #[test]
    fn a_falling_trend_gives_no_negative_coefficient() {
        // Time per token falls with length here: an unconstrained fit makes the square negative.
        let points = [point(&[100], 10.0), point(&[200], 19.0), point(&[400], 34.0), point(&[800], 60.0)];
        let fitted = fit(&points).unwrap();
        assert!(fitted.quadratic_ms_per_token2 >= 0.0 && fitted.linear_ms_per_token > 0.0 && fitted.fixed_ms >= 0.0);
    }

    #[test]
    fn unusable_points_are_refused() {
        let too_few = [point(&[100], 1.0), point(&[100], 1.1), point(&[50, 50], 1.0), point(&[200], 2.0)];
        let broken = [point(&[100], 1.0), point(&[200], f64::NAN), point(&[300], 3.0)];
        assert_eq!(fit(&too_few).unwrap_err().code(), "fit_points");
        assert_eq!(fit(&broken).unwrap_err().code(), "fit_points");
    }
}
