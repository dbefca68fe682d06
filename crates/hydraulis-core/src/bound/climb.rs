//! The latest time that can be proven impossible for a market.

use crate::bound::demand::Price;
use crate::bound::market::{Market, Slots};
use crate::bound::relaxation::{Relaxation, Solution};
use crate::units::Millis;

/// A time that no plan on the market ends before, and what a program would use by about then.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    pub(super) end: Millis,
    /// Replicas and micro-batches of each scheme, fractions included.
    pub(super) used: Vec<(f64, f64)>,
    /// What sequences cost on each offer, by about then.
    pub(super) prices: Vec<Price>,
}

/// Climbs from a time before which nothing ends, until `until` or until the programs prove no more.
pub(super) fn climb(market: &Market, from: Millis, until: Millis) -> Climb {
    let mut found = Climb { end: from, used: vec![(0.0, 0.0); market.offers.len()], prices: Vec::new() };
    by_work(market, until, &mut found);
    if found.end < until {
        by_slots(market, until, &mut found);
    }
    found
}

/// Each program is solved at the latest time known to be impossible, and its prices prove a later one.
fn by_work(market: &Market, until: Millis, found: &mut Climb) {
    for _ in 0..market.budget.programs {
        let before = found.end;
        let is_proven = prove(market, before, until, Slots::Ignored, found);
        if !is_proven || found.end.0 < before.0 * (1.0 + market.budget.rise) || found.end >= until {
            break;
        }
    }
}

/// Which sequences are large depends on the time, so prices prove little beyond the time they are made for: times
/// ahead are tried, and then the interval is halved.
fn by_slots(market: &Market, until: Millis, found: &mut Climb) {
    let mut step = market.budget.first_step;
    let mut possible = until;
    for _ in 0..market.budget.probes {
        let ahead = found.end * (1.0 + step);
        let probe = if ahead < possible { ahead } else { Millis(0.5 * (found.end.0 + possible.0)) };
        if probe.0 > found.end.0 * 1e6 || found.end.0 * (1.0 + market.budget.close) >= possible.0 {
            break;
        }
        if prove(market, probe, until, Slots::Counted, found) {
            step *= 4.0;
        } else {
            possible = probe;
        }
    }
}

/// Whether the program at `time` proves it impossible; then the time found is that or later.
fn prove(market: &Market, time: Millis, until: Millis, slots: Slots, found: &mut Climb) -> bool {
    let Solution { prices, used } = Relaxation::new(market, time, slots).solve();
    found.used = used;
    let later = market.impossible(&prices, time, until);
    if later.is_some() || found.prices.is_empty() {
        found.prices = market.prices(&prices, &market.reaches(time));
    }
    found.end = found.end.max(later.unwrap_or_default());
    later.is_some()
}
