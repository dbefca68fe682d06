//! Several schemes of one model, fitted together.
//!
//! However a model is cut, the work is the same, but for what is computed again. So `a` and `b` times all ranks of a replica
//! change little from scheme to scheme, and `c`, which is the overhead of a stage's layers, little times its stages. Two schemes
//! that differ in pp alone differ least, and each doubling of tp or cp, which cut the matrices smaller and add communication,
//! lets them differ more, as another kind of checkpointing does. That is what a scheme's neighbours tell of it, as one more
//! equation for each coefficient. Where a scheme's own points identify a coefficient they outweigh it: the data win. Where too
//! few lengths fitted into memory, they cannot.
//!
//! How far schemes differ is taken from the shipped tables (`docs/cost-model.md`), generously.

use super::student::NORMAL;
use super::{CostFit, Measurement, measurement, robust};
use crate::cost::recomputation::Recomputation;
use crate::error::Result;
use crate::linear::Row;
use crate::spec::Scheme;
use crate::units::count;

/// Relative deviation of `a`, `b` and `c` between schemes that differ in pp alone.
const ALIKE: [f64; 3] = [0.1, 0.1, 0.3];
/// What each doubling of tp or cp adds to that, and so does another kind of checkpointing.
const PER_DOUBLING: [f64; 3] = [0.15, 0.25, 0.3];
/// No timings agree better.
const LEAST_ERROR: f64 = 1e-6;

/// The coefficients of several schemes of one model, each from its own measurements and, where these leave them open, from
/// those of the others.
pub fn fit_schemes(measured: &[(Scheme, Vec<Measurement>)]) -> Result<Vec<CostFit>> {
    for (scheme, points) in measured {
        measurement::check(points, Some(*scheme))?;
    }
    let alone: Vec<Option<CostFit>> = measured.iter().map(|(_, points)| robust::fit_alone(points)).collect();
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
        let fit = if prior.is_empty() { alone[place].clone() } else { robust::fit_with(points, prior, usual) };
        fit.ok_or_else(|| measurement::unidentified(points, Some(*scheme)))?.explained(Some(*scheme))
    });
    fitted.collect()
}

/// The median of what the schemes' points differ from their fits by: one machine timed them all.
fn usual_error(alone: &[Option<CostFit>]) -> f64 {
    let mut errors: Vec<f64> = alone.iter().flatten().map(|fit| fit.relative_error).collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied().unwrap_or_default()
}

/// A scheme's coefficients as work of the whole replica, and how far off each may be.
struct Work {
    scheme: Scheme,
    value: [f64; 3],
    deviation: [f64; 3],
}

impl Work {
    /// Points that agree better than those of most schemes do so by chance.
    ///
    /// Deviations are those of normal laws with the fit's intervals. The intervals of few points are Student's, so these are
    /// wider than the fit's own deviations, which few points tell badly. By the fit's own the time of the fullest micro-batch
    /// would be off by 1.4 instead of 1.0 % (4 points each of the 32B table's schemes, 1 % of noise, root mean square; at 3 %
    /// by 2.8 instead of 2.1 %); of 5 points and more by as much.
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

/// What a coefficient is multiplied with to be that of the whole replica, were nothing computed again.
fn shares(scheme: Scheme) -> [f64; 3] {
    let again = Recomputation::of(scheme.layer_plan());
    let ranks = count(scheme.ranks());
    [ranks / again.attention, ranks / again.matrices, count(scheme.stages()) / again.matrices]
}

/// What the neighbours tell of each coefficient.
fn prior(scheme: Scheme, neighbours: &[&Work]) -> Vec<Row<3>> {
    (0..3).filter_map(|coefficient| told(scheme, neighbours, coefficient)).collect()
}

/// One coefficient's equation; none where no neighbour knows anything.
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

/// The weighted median of the neighbours' values: the unit of what they may differ by.
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

/// How many times tp and cp double from the one to the other; parts of a doubling count whole, and so does another kind of
/// checkpointing.
fn doublings(one: Scheme, other: Scheme) -> f64 {
    let between = |left: u16, right: u16| {
        let (small, large) = (left.min(right), left.max(right));
        count(large.div_ceil(small).next_power_of_two().trailing_zeros())
    };
    let kinds = if one.layer_plan() == other.layer_plan() { 0.0 } else { 1.0 };
    between(one.tp(), other.tp()) + between(one.cp(), other.cp()) + kinds
}
