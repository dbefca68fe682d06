//! The fit of one scheme's points, with or without prior knowledge, robust against outliers.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::cost_fit::t_95;
use super::{CostFit, Interval, MeasuredRange, Measurement};
use crate::linear::{Row, dot, inverse, non_negative};
use crate::units::count;

/// Number of unknowns, and of points that determine them.
const UNKNOWNS: usize = 3;
/// Triples of points evaluated as starting values: with a third of outliers each triple is free of them with
/// probability 0.3.
const TRIPLES: usize = 300;
/// Number of best starting values that are improved.
const IMPROVED: usize = 5;
/// Steps of improvement of each (the C-steps of Rousseeuw and Van Driessen 2006).
const STEPS: usize = 3;
/// Constant of the weights: 95 % as efficient as least squares if errors are normal (Tukey's biweight).
const BIWEIGHT: f64 = 4.685;
/// Factor from the median of absolute errors to the standard deviation, if errors are normal.
pub(super) const MEDIAN_TO_DEVIATION: f64 = 1.4826;
/// Greatest excess of the spread of least squares of `n` points over that of the points that agree best, times the root
/// of `n - 3`, before the rest count as outliers.
const BY_CHANCE: f64 = 5.0;
/// Two timings of the same work differ by as much: points that agree better than this do not count against the others.
pub(super) const LEAST_SPREAD: f64 = 0.01;
/// The prior spread of timings.
const EXPECTED_SPREAD: f64 = 0.05;
/// Degrees of freedom of the neighbours' equations: at five deviations their weight is a sixth.
const TOLD: f64 = 4.0;
/// Most rounds of reweighting; it settles in ten or twenty rounds, and a cycle would end here.
const ROUNDS: usize = 100;

/// The points and the prior knowledge, in rows whose errors have variance 1.
#[derive(Clone)]
pub(super) struct Problem {
    pub(super) points: Vec<Point>,
    pub(super) prior: Vec<Row<UNKNOWNS>>,
    /// Least deviation of the relative errors.
    pub(super) least_spread: f64,
}

/// One point.
#[derive(Clone, Copy)]
pub(super) struct Point {
    features: [f64; UNKNOWNS],
    ms: f64,
}

/// The state after reweighting has settled.
#[derive(Clone)]
pub(super) struct Settled {
    pub(super) x: [f64; UNKNOWNS],
    /// Deviation of the relative errors.
    pub(super) spread: f64,
}

/// Fits points without prior knowledge; none if they do not identify all coefficients.
pub(super) fn fit_alone(measurements: &[Measurement]) -> Option<CostFit> {
    let problem = Problem::of(measurements, Vec::new());
    problem.fitted(measurements, &problem.beginning()?)
}

/// Fits points with prior knowledge, which replaces the coefficients that they do not identify.
///
/// Errors are assumed to spread by at least `usual`: a few points may agree by chance, and would outweigh the prior
/// knowledge.
pub(super) fn fit_with(measurements: &[Measurement], prior: Vec<Row<UNKNOWNS>>, usual: f64) -> Option<CostFit> {
    let problem = Problem { least_spread: usual.max(LEAST_SPREAD), ..Problem::of(measurements, prior) };
    let by_time: Vec<f64> = problem.points.iter().map(|point| 1.0 / (point.ms * EXPECTED_SPREAD)).collect();
    let x = problem.solve(&by_time, &problem.prior)?;
    problem.fitted(measurements, &problem.settle(&Settled { spread: problem.spread(&x), x })?)
}

impl Point {
    /// Measured over predicted time, less 1.
    pub(super) fn error(&self, x: &[f64; UNKNOWNS]) -> f64 {
        self.ms / dot(&self.features, x) - 1.0
    }

    /// The point's equation, times `scale`.
    fn row(&self, scale: f64) -> Row<UNKNOWNS> {
        Row { features: self.features.map(|feature| feature * scale), target: self.ms * scale }
    }
}

impl Problem {
    fn of(measurements: &[Measurement], prior: Vec<Row<UNKNOWNS>>) -> Problem {
        let point = |measurement: &Measurement| Point { features: measurement.features(), ms: measurement.ms.0 };
        Problem { points: measurements.iter().map(point).collect(), prior, least_spread: LEAST_SPREAD }
    }

    /// Least squares of points in these scales together with prior knowledge.
    fn solve(&self, scales: &[f64], prior: &[Row<UNKNOWNS>]) -> Option<[f64; UNKNOWNS]> {
        let rows = self.points.iter().zip(scales).map(|(point, &scale)| point.row(scale));
        non_negative(&rows.chain(prior.iter().copied()).collect::<Vec<_>>())
    }

    /// Prior knowledge, each equation weighted by its agreement with `x` (as if errors followed Student's law): good
    /// points outweigh neighbours that do other work.
    fn told(&self, x: &[f64; UNKNOWNS]) -> Vec<Row<UNKNOWNS>> {
        let weighed = |row: &Row<UNKNOWNS>| {
            let off = dot(&row.features, x) - row.target;
            row.times(((TOLD + 1.0) / (TOLD + off * off)).min(1.0).sqrt())
        };
        self.prior.iter().map(weighed).collect()
    }

    /// Least squares if its errors show no outliers, otherwise the solution on which at least half of the points agree
    /// best.
    ///
    /// Some of a few points always agree by chance: they outweigh the others only if these are far off.
    fn beginning(&self) -> Option<Settled> {
        let by_time: Vec<f64> = self.points.iter().map(|point| 1.0 / point.ms).collect();
        let start = self.solve(&by_time, &[])?;
        let plain = self.settle(&Settled { x: start, spread: f64::INFINITY })?.x;
        let agreed = self.agreed(plain);
        let agreed = self.settle(&Settled { x: agreed, spread: self.spread(&agreed) })?;
        let left_over = count(self.points.len() - UNKNOWNS);
        let squares: f64 = self.points.iter().map(|point| point.error(&plain)).map(|error| error * error).sum();
        let (deviation, spread) = ((squares / left_over).sqrt(), self.spread(&agreed.x));
        if deviation <= spread * (1.0 + BY_CHANCE / left_over.sqrt()) {
            return Some(Settled { x: plain, spread: deviation.max(self.least_spread) });
        }
        Some(Settled { spread, ..agreed })
    }

    /// The coefficients with which more than half of the points agree best.
    fn agreed(&self, plain: [f64; UNKNOWNS]) -> [f64; UNKNOWNS] {
        let rated = |x: [f64; UNKNOWNS]| (self.trimmed(&x), x);
        let mut tried: Vec<(f64, [f64; UNKNOWNS])> = self.triples().chain([plain]).map(rated).collect();
        tried.sort_by(|one, other| one.0.total_cmp(&other.0));
        tried.truncate(IMPROVED);
        let improve = |x| (0..STEPS).try_fold(x, |x, _| self.concentrated(&x)).unwrap_or(x);
        let improved = tried.into_iter().map(|(_, x)| rated(improve(x)));
        improved.min_by(|one, other| one.0.total_cmp(&other.0)).map_or(plain, |(_, x)| x)
    }

    /// Solutions of three points each: the same triples for the same number of points.
    fn triples(&self) -> impl Iterator<Item = [f64; UNKNOWNS]> {
        let mut random = Pcg64Mcg::seed_from_u64(0);
        let number = self.points.len() as u64;
        std::iter::repeat_with(move || {
            let drawn = [(); UNKNOWNS].map(|()| usize::try_from(random.next_u64() % number).unwrap_or_default());
            non_negative(&drawn.map(|place| self.points[place].row(1.0 / self.points[place].ms)))
        })
        .take(TRIPLES)
        .flatten()
    }

    /// Number of points that must agree.
    fn majority(&self) -> usize {
        (self.points.len() + UNKNOWNS).div_ceil(2)
    }

    /// Squared errors of the majority that agrees best.
    fn trimmed(&self, x: &[f64; UNKNOWNS]) -> f64 {
        let mut errors: Vec<f64> = self.points.iter().map(|point| point.error(x)).map(|error| error * error).collect();
        errors.sort_by(f64::total_cmp);
        errors[..self.majority()].iter().sum()
    }

    /// The solution of the majority that agrees best with `x`.
    fn concentrated(&self, x: &[f64; UNKNOWNS]) -> Option<[f64; UNKNOWNS]> {
        let mut order: Vec<&Point> = self.points.iter().collect();
        order.sort_by(|one, other| one.error(x).abs().total_cmp(&other.error(x).abs()));
        let rows: Vec<_> =
            order[..self.majority()].iter().map(|point| point.row(1.0 / dot(&point.features, x))).collect();
        non_negative(&rows)
    }

    /// Deviation of the relative errors, by their median; larger if few points remain to estimate it.
    fn spread(&self, x: &[f64; UNKNOWNS]) -> f64 {
        let mut errors: Vec<f64> = self.points.iter().map(|point| point.error(x).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let left_over = count(self.points.len().saturating_sub(UNKNOWNS).max(1));
        let few = 1.0 + 5.0 / left_over;
        (MEDIAN_TO_DEVIATION * few * errors[errors.len() / 2]).max(self.least_spread)
    }

    /// Weights and solves in turn until nothing changes.
    pub(super) fn settle(&self, from: &Settled) -> Option<Settled> {
        let mut x = from.x;
        for _ in 0..ROUNDS {
            let scale = |point: &Point| {
                weight(point.error(&x) / from.spread).sqrt() / (dot(&point.features, &x) * self.unit(from.spread))
            };
            let scales: Vec<f64> = self.points.iter().map(scale).collect();
            let next = self.solve(&scales, &self.told(&x))?;
            let still = x.iter().zip(&next).all(|(before, after)| (before - after).abs() <= 1e-12 * after.abs());
            x = next;
            if still {
                break;
            }
        }
        Some(Settled { x, ..*from })
    }

    /// The unit of a relative error: it matters only together with prior knowledge.
    fn unit(&self, spread: f64) -> f64 {
        if self.prior.is_empty() { 1.0 } else { spread }
    }

    fn fitted(&self, measurements: &[Measurement], start: &Settled) -> Option<CostFit> {
        let settled = self.settle(start)?;
        let (covariance, t) = self.covariance(&settled)?;
        let residuals: Vec<f64> = self.points.iter().map(|point| point.error(&settled.x)).collect();
        let weights: Vec<f64> = residuals.iter().map(|error| weight(error / settled.spread)).collect();
        let squares: f64 = residuals.iter().zip(&weights).map(|(error, weight)| error * error * weight).sum();
        let mut fit = CostFit {
            quadratic_ms_per_token2: settled.x[0],
            linear_ms_per_token: settled.x[1],
            fixed_ms: settled.x[2],
            least_ms: 0.0,
            intervals: [Interval { low: 0.0, high: 0.0 }; UNKNOWNS],
            relative_error: (squares / weights.iter().sum::<f64>().max(1.0)).sqrt(),
            held_out_error: held_out_error(self, &settled),
            residuals,
            outliers: weights.iter().filter(|&&weight| weight <= 0.0).count(),
            range: MeasuredRange::of(measurements),
        };
        for (coefficient, value) in settled.x.into_iter().enumerate() {
            let half = t * covariance[coefficient][coefficient].max(0.0).sqrt();
            fit.intervals[coefficient] = Interval { low: (value - half).max(0.0), high: value + half };
        }
        Some(fit)
    }

    /// Covariance of the coefficients, as if none were fixed at 0, after Huber (1981, section 7.6), and the factor to an
    /// interval of 95 %.
    fn covariance(&self, settled: &Settled) -> Option<([[f64; UNKNOWNS]; UNKNOWNS], f64)> {
        let number = count(self.points.len());
        let left_over = self.points.len() - UNKNOWNS.min(self.points.len());
        let (mut influence, mut slope) = (0.0, 0.0);
        for point in &self.points {
            let error = point.error(&settled.x);
            let share = error / (BIWEIGHT * settled.spread);
            let felt = error * weight(error / settled.spread);
            influence += felt * felt;
            slope += if share.abs() < 1.0 { (1.0 - share * share) * (1.0 - 5.0 * share * share) } else { 0.0 };
        }
        let deviation = (influence / count(left_over.max(1))).sqrt() / (slope / number).max(0.1);
        // Together with prior knowledge a deviation of 0 would remove all of it, and the matrix could not be inverted.
        let deviation = if self.prior.is_empty() { deviation } else { deviation.max(self.least_spread) };
        let unit = if self.prior.is_empty() { 1.0 } else { deviation };
        let rows: Vec<_> =
            self.points.iter().map(|point| point.row(1.0 / (dot(&point.features, &settled.x) * unit))).collect();
        let inverse = inverse(&[rows, self.told(&settled.x)].concat())?;
        let variance = if self.prior.is_empty() { deviation * deviation } else { 1.0 };
        Some((inverse.map(|row| row.map(|entry| entry * variance)), t_95(left_over + self.prior.len())))
    }
}

/// The weight of a point with an error of `deviations` deviations.
pub(super) fn weight(deviations: f64) -> f64 {
    let share = deviations / BIWEIGHT;
    let inside = (1.0 - share * share).max(0.0);
    inside * inside
}

/// Up to this number of points, each is left out alone; more points are split into as many groups.
const FOLDS: usize = 32;

/// Median of the relative errors on points left out; none if the other points leave more than half of them
/// undetermined.
pub(super) fn held_out_error(problem: &Problem, settled: &Settled) -> Option<f64> {
    let folds = problem.points.len().min(FOLDS);
    let mut errors: Vec<f64> = (0..folds).flat_map(|fold| left_out(problem, settled, fold, folds)).collect();
    if 2 * errors.len() <= problem.points.len() {
        return None;
    }
    errors.sort_by(f64::total_cmp);
    Some(errors[errors.len() / 2])
}

fn left_out(problem: &Problem, settled: &Settled, fold: usize, folds: usize) -> Vec<f64> {
    let is_out = |place: &usize| place % folds == fold;
    let chosen = |keep: bool| (0..problem.points.len()).filter(move |place| is_out(place) != keep);
    let kept = Problem {
        points: chosen(true).map(|place| problem.points[place]).collect(),
        prior: problem.prior.clone(),
        ..*problem
    };
    let Some(without) = kept.settle(settled) else { return Vec::new() };
    chosen(false).map(|place| problem.points[place].error(&without.x).abs()).collect()
}
