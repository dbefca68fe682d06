//! Tells micro-batches that take the least time from those that take longer.
//!
//! A device computes kernels no faster than its host launches them, and the launches of a small micro-batch take the
//! same time whatever its tokens. Of 22 layers on an H100, micro-batches of 16 to 4,096 tokens took 58 to 83 ms each,
//! and above that 12 us a token. A fit of `a s^2 + b s + c` to both kinds halves `b`, and is 50 % off between them.

use super::measurement::LEAST_POINTS;
use super::robust::{self, LEAST_SPREAD, MEDIAN_TO_DEVIATION};
use super::{CostFit, MeasuredRange, Measurement};
use crate::units::{Millis, count};

/// Greatest mean error, relative to that without a least time, at which the points show one.
const FAR_BETTER: f64 = 0.5;
/// Mean error of a law that needs no least time.
const GOOD_ENOUGH: f64 = 0.03;
/// Greatest error of a point that a law explains.
const EXPLAINED: f64 = 0.1;
/// Fewer points agree on a least time by chance.
const FEWEST: usize = 3;
/// Most split points that are tried.
const MOST_TRIED: usize = 24;

/// The points of one scheme in two parts.
#[derive(Default)]
pub(super) struct Split {
    /// The points whose time is the least, by their places.
    of_least: Vec<usize>,
    /// That time; 0 without such points.
    least: Millis,
    /// The other points, which `a`, `b` and `c` are fitted to.
    pub(super) rest: Vec<Measurement>,
}

impl Split {
    /// The split that agrees best with its own laws. No point is of the first part unless that halves the error.
    pub(super) fn of(points: &[Measurement]) -> Split {
        let whole = || Split { rest: points.to_vec(), ..Split::default() };
        let Some(plain) = robust::fit_alone(points) else { return whole() };
        let error = mean_error(&plain, points);
        if error <= GOOD_ENOUGH {
            return whole();
        }
        let mut by_time: Vec<usize> = (0..points.len()).collect();
        by_time.sort_by_key(|&place| plain.predict(&points[place].sequences));
        let most = points.len().saturating_sub(LEAST_POINTS);
        let tried = (FEWEST..=most).step_by(most.div_ceil(MOST_TRIED).max(1)).filter_map(|number| {
            let split = Split::at(points, &by_time, number);
            let fit = CostFit { least_ms: split.least.0, ..robust::fit_alone(&split.rest)? };
            Some((mean_error(&fit, points), explained_by(&fit, points), split))
        });
        match tried.min_by(|(one, ..), (other, ..)| one.total_cmp(other)) {
            // Slow outliers are no least time: a law that is bent towards them explains fewer of the other points.
            Some((better, explained, split))
                if better <= FAR_BETTER * error && explained > explained_by(&plain, points) =>
            {
                split.by_law(points)
            }
            _ => whole(),
        }
    }

    /// The split at the point where its own laws meet, unless it leaves too few points to fit.
    ///
    /// Points of the least time among the others are outliers of their fit, and change it little.
    fn by_law(self, points: &[Measurement]) -> Split {
        let Some(fit) = robust::fit_alone(&self.rest) else { return self };
        let mut places: Vec<usize> = (0..points.len()).collect();
        places.sort_by_key(|&place| fit.predict(&points[place].sequences));
        let number = places.partition_point(|&place| fit.predict(&points[place].sequences) <= self.least);
        if number < FEWEST || points.len() - number < LEAST_POINTS {
            return self;
        }
        Split::at(points, &places, number)
    }

    /// The split with the first `number` of these places in the first part.
    fn at(points: &[Measurement], places: &[usize], number: usize) -> Split {
        let (of_least, rest) = places.split_at(number);
        Split {
            of_least: of_least.to_vec(),
            least: Millis(median(of_least.iter().map(|&place| points[place].ms.0).collect())),
            rest: rest.iter().map(|&place| points[place].clone()).collect(),
        }
    }

    /// The fit of all points, from that of the second part.
    pub(super) fn joined(&self, fit: CostFit, points: &[Measurement]) -> CostFit {
        if self.of_least.is_empty() {
            return fit;
        }
        let fit = CostFit { least_ms: self.least.0, range: MeasuredRange::of(points), ..fit };
        let residuals: Vec<f64> = points.iter().map(|point| residual(&fit, point)).collect();
        let errors: Vec<f64> = self.of_least.iter().map(|&place| residuals[place].abs()).collect();
        let middle = median(errors.clone());
        let spread = (MEDIAN_TO_DEVIATION * middle).max(LEAST_SPREAD);
        let weights: Vec<f64> = errors.iter().map(|error| robust::weight(error / spread)).collect();
        let squares: f64 = errors.iter().zip(&weights).map(|(error, weight)| error * error * weight).sum();
        let of_rest = count(self.rest.len() - fit.outliers);
        let all = of_rest + weights.iter().sum::<f64>();
        CostFit {
            relative_error: ((fit.relative_error.powi(2) * of_rest + squares) / all.max(1.0)).sqrt(),
            held_out_error: fit.held_out_error.map(|error| error.max(middle)),
            outliers: fit.outliers + weights.iter().filter(|&&weight| weight <= 0.0).count(),
            residuals,
            ..fit
        }
    }
}

/// Measured over predicted time, less 1.
fn residual(fit: &CostFit, point: &Measurement) -> f64 {
    point.ms.0 / fit.predict(&point.sequences).0 - 1.0
}

/// Number of points that a fit explains.
fn explained_by(fit: &CostFit, points: &[Measurement]) -> usize {
    points.iter().filter(|point| residual(fit, point).abs() <= EXPLAINED).count()
}

/// The mean error of the points but a tenth, those that are furthest off.
fn mean_error(fit: &CostFit, points: &[Measurement]) -> f64 {
    let mut errors: Vec<f64> = points.iter().map(|point| residual(fit, point).abs()).collect();
    errors.sort_by(f64::total_cmp);
    errors.truncate(points.len() - points.len().div_ceil(10));
    errors.iter().sum::<f64>() / count(errors.len())
}

/// The middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    values.get(low).zip(values.get(high)).map_or(0.0, |(low, high)| (low + high) / 2.0)
}
