//! The error on points that a fit has not seen.

use super::robust::{Problem, Settled};

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
