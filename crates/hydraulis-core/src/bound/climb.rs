//! The latest time that can be proven impossible for a dual program.

use crate::bound::active::solve;
use crate::bound::batch_sums::Price;
use crate::bound::dual_program::{ClassPrices, DualProgram, Slots};
use crate::bound::relaxation::{Relaxation, Solution};
use crate::units::Millis;

/// A lower bound of every plan on the dual program, and the solution of a program at about that time.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    pub(super) end: Millis,
    /// Replicas and micro-batches of each class, fractions included.
    pub(super) used: Vec<(f64, f64)>,
    /// Dual prices of sequences on each class, at about that time.
    pub(super) prices: Vec<Price>,
    /// The dual prices that give these.
    pub(super) duals: Vec<ClassPrices>,
}

/// Raises the proven time from `from`, until `until` or until the programs prove no later time.
pub(super) fn climb(dual: &mut DualProgram, from: Millis, until: Millis) -> Climb {
    let mut found =
        Climb { end: from, used: vec![(0.0, 0.0); dual.classes.len()], prices: Vec::new(), duals: Vec::new() };
    by_work(dual, until, &mut found);
    if found.end < until {
        by_slots(dual, until, &mut found);
    }
    found
}

/// Whether dual prices of a program at `end`, without or with slots, prove that time impossible.
pub(super) fn rules_out(dual: &DualProgram, end: Millis) -> bool {
    let capacities = dual.capacities_by(end);
    [Slots::Ignored, Slots::Counted].into_iter().any(|slots| {
        let solution = Relaxation::new(dual, capacities.clone(), slots).solve();
        dual.is_impossible_with(&solution.prices, &capacities)
    })
}

/// Solves each program at the latest time known to be impossible; its dual prices prove a later one.
fn by_work(dual: &mut DualProgram, until: Millis, found: &mut Climb) {
    for _ in 0..dual.budget.programs {
        let before = found.end;
        let is_proven = prove(dual, before, until, Slots::Ignored, found);
        if !is_proven || found.end.0 < before.0 * (1.0 + dual.budget.rise) || found.end >= until {
            break;
        }
    }
}

/// Which sequences are large depends on the time, so dual prices prove little beyond the time of their program: later
/// times are evaluated first, then the interval is bisected.
fn by_slots(dual: &mut DualProgram, until: Millis, found: &mut Climb) {
    let mut step = dual.budget.first_step;
    let mut possible = until;
    for _ in 0..dual.budget.probes {
        let ahead = found.end * (1.0 + step);
        let probe = if ahead < possible { ahead } else { Millis(0.5 * (found.end.0 + possible.0)) };
        if probe.0 > found.end.0 * 1e6 || found.end.0 * (1.0 + dual.budget.close) >= possible.0 {
            break;
        }
        if prove(dual, probe, until, Slots::Counted, found) {
            step *= 4.0;
        } else {
            possible = probe;
        }
    }
}

/// Whether the program at `time` proves that time impossible; then the found time is `time` or later.
fn prove(dual: &mut DualProgram, time: Millis, until: Millis, slots: Slots, found: &mut Climb) -> bool {
    let (Solution { prices, used, .. }, capacities) = solve(dual, time, slots);
    found.used = used;
    let later = dual.impossible(&prices, time, until);
    let is_proven = later.is_some();
    if is_proven || found.prices.is_empty() {
        found.prices = dual.prices(&prices, &capacities);
        let (end, duals) = later.unwrap_or((found.end, prices));
        (found.end, found.duals) = (found.end.max(end), duals);
    }
    is_proven
}
