//! Fits several schemes of one model together.
//!
//! However a model is cut, its work is the same, except for recomputation. Therefore `a` and `b` times all ranks of a
//! replica change little from scheme to scheme, and `c`, the overhead of a stage's layers, changes little times its
//! stages. Two schemes that differ in pp alone differ least. Each doubling of tp or cp, which cut the matrices smaller
//! and add communication, allows a greater difference, as another kind of checkpointing does. A scheme's neighbours
//! give one more such equation for each coefficient. If a scheme's own points identify a coefficient they outweigh this
//! equation: the data win. If too few lengths fitted into memory, they cannot.
//!
//! The difference between schemes is taken from the shipped tables (`docs/cost-model.md`), generously.

use super::cost_fit::NORMAL;
use super::least::Split;
use super::{CostFit, Measurement, measurement, robust};
use crate::cost::recomputation::Recomputation;
use crate::error::Result;
use crate::linear::Row;
use crate::spec::Scheme;
use crate::units::count;

/// Relative deviation of `a`, `b` and `c` between schemes that differ in pp alone.
const ALIKE: [f64; 3] = [0.1, 0.1, 0.3];
/// Deviation added by each doubling of tp or cp, and by another kind of checkpointing.
const PER_DOUBLING: [f64; 3] = [0.15, 0.25, 0.3];
/// Least error of timings.
const LEAST_ERROR: f64 = 1e-6;

/// The coefficients of several schemes of one model, each from its own measurements and, if these leave them open, from
/// those of the others.
pub fn fit_schemes(measured: &[(Scheme, Vec<Measurement>)]) -> Result<Vec<CostFit>> {
    for (scheme, points) in measured {
        measurement::check(points, Some(*scheme))?;
    }
    let splits: Vec<Split> = measured.iter().map(|(_, points)| Split::of(points)).collect();
    let alone: Vec<Option<CostFit>> = splits.iter().map(|split| robust::fit_alone(&split.rest)).collect();
    let usual = usual_error(&alone);
    let work = |(scheme, fit): (Scheme, &Option<CostFit>)| fit.as_ref().map(|fit| Work::of(scheme, fit, usual));
    let works: Vec<Option<Work>> = measured.iter().map(|(scheme, _)| *scheme).zip(&alone).map(work).collect();
    let fitted = measured.iter().enumerate().map(|(place, (scheme, points))| {
        let neighbours: Vec<&Work> = works
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != place)
            .filter_map(|(_, work)| work.as_ref())
            .collect();
        let prior = prior(*scheme, &neighbours);
        let split = &splits[place];
        let fit = if prior.is_empty() { alone[place].clone() } else { robust::fit_with(&split.rest, prior, usual) };
        let fit = fit.ok_or_else(|| measurement::unidentified(points, Some(*scheme)))?;
        split.joined(fit, points).explained(Some(*scheme))
    });
    fitted.collect()
}

/// The median of the schemes' errors from their fits: one machine timed them all.
fn usual_error(alone: &[Option<CostFit>]) -> f64 {
    let mut errors: Vec<f64> = alone.iter().flatten().map(|fit| fit.relative_error).collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied().unwrap_or_default()
}

/// A scheme's coefficients as work of the whole replica, and the deviation of each.
struct Work {
    scheme: Scheme,
    value: [f64; 3],
    deviation: [f64; 3],
}

impl Work {
    /// Points that agree better than those of most schemes do so by chance.
    ///
    /// Deviations are those of normal laws with the fit's intervals. The intervals of few points are Student's, so
    /// these deviations are wider than the fit's own, which few points estimate badly. With the fit's own deviations
    /// the time of the fullest micro-batch would be off by 1.4 instead of 1.0 % (4 points each of the 32B table's
    /// schemes, 1 % of noise, root mean square; at 3 % by 2.8 instead of 2.1 %); of 5 points and more by as much.
    fn of(scheme: Scheme, fit: &CostFit, usual: f64) -> Work {
        let by_chance = (usual / fit.relative_error.max(LEAST_ERROR)).max(1.0);
        let shares = shares(scheme);
        let value = fit.coefficients();
        let half = [0, 1, 2].map(|j| fit.intervals[j].high - value[j]);
        Work {
            scheme,
            value: [0, 1, 2].map(|j| value[j] * shares[j]),
            deviation: [0, 1, 2].map(|j| half[j] / NORMAL * by_chance * shares[j]),
        }
    }
}

/// Factors from the coefficients to those of the whole replica without recomputation.
fn shares(scheme: Scheme) -> [f64; 3] {
    let again = Recomputation::of(scheme.layer_plan());
    let ranks = count(scheme.ranks());
    [ranks / again.attention, ranks / again.matrices, count(scheme.stages()) / again.matrices]
}

/// The equations that the neighbours give for each coefficient.
fn prior(scheme: Scheme, neighbours: &[&Work]) -> Vec<Row<3>> {
    (0..3).filter_map(|coefficient| told(scheme, neighbours, coefficient)).collect()
}

/// One coefficient's equation; none if no neighbour determines it.
fn told(scheme: Scheme, neighbours: &[&Work], coefficient: usize) -> Option<Row<3>> {
    let usual = usual(neighbours, coefficient)?;
    let (mut weights, mut sum, mut nearest) = (0.0, 0.0, f64::INFINITY);
    for work in neighbours {
        let apart = usual * (ALIKE[coefficient] + PER_DOUBLING[coefficient] * doublings(scheme, work.scheme));
        let deviation = work.deviation[coefficient];
        let weight = 1.0 / (apart * apart + deviation * deviation);
        weights += weight;
        sum += weight * work.value[coefficient];
        nearest = apart.min(nearest);
    }
    if weights <= 0.0 {
        return None;
    }
    // The mean of many neighbours is well known, but the scheme may differ from it as from any of them.
    let deviation = (1.0 / weights + nearest * nearest).sqrt();
    let mut features = [0.0; 3];
    features[coefficient] = shares(scheme)[coefficient] / deviation;
    Some(Row { features, target: sum / weights / deviation })
}

/// The weighted median of the neighbours' values: the unit of their differences.
fn usual(neighbours: &[&Work], coefficient: usize) -> Option<f64> {
    let weight = |work: &Work| {
        let relative = work.deviation[coefficient] / work.value[coefficient].max(f64::MIN_POSITIVE);
        1.0 / (1.0 + relative * relative)
    };
    let mut values: Vec<(f64, f64)> = neighbours.iter().map(|work| (work.value[coefficient], weight(work))).collect();
    values.sort_by(|one, other| one.0.total_cmp(&other.0));
    let half = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut passed = 0.0;
    let middle = values.into_iter().find(|(_, weight)| {
        passed += weight;
        passed >= half
    });
    middle.map(|(value, _)| value).filter(|&value| value > 0.0 && value.is_finite())
}

/// The doublings of tp and cp between two schemes; parts of a doubling count whole, and so does another kind of
/// checkpointing.
fn doublings(one: Scheme, other: Scheme) -> f64 {
    let between = |left: u16, right: u16| {
        let (small, large) = (left.min(right), left.max(right));
        count(large.div_ceil(small).next_power_of_two().trailing_zeros())
    };
    let kinds = if one.layer_plan() == other.layer_plan() { 0.0 } else { 1.0 };
    between(one.tp(), other.tp()) + between(one.cp(), other.cp()) + kinds
}
