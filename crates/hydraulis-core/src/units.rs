//! Units as types: tokens are not bytes, and milliseconds have a total order.
//!
//! This is the one module that casts integers to floats. Counts stay far below 2^53 (a sequence is refused
//! above 2^26 tokens), so every cast is exact.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

use serde::{Deserialize, Serialize};

/// A number of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u64);

impl Tokens {
    /// The count as a float, for cost formulas.
    pub fn as_f64(self) -> f64 {
        count(self.0)
    }

    /// Least number of micro-batches of `cap` tokens that can take these tokens.
    pub fn div_ceil(self, cap: Tokens) -> usize {
        usize::try_from(self.0.div_ceil(cap.0)).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Add for Tokens {
    type Output = Tokens;
    fn add(self, other: Tokens) -> Tokens {
        Tokens(self.0 + other.0)
    }
}

impl Sub for Tokens {
    type Output = Tokens;
    fn sub(self, other: Tokens) -> Tokens {
        Tokens(self.0 - other.0)
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Tokens) {
        self.0 += other.0;
    }
}

impl Sum for Tokens {
    fn sum<I: Iterator<Item = Tokens>>(items: I) -> Tokens {
        items.fold(Tokens(0), Add::add)
    }
}

/// A time in milliseconds. The order is total, so that minima never depend on comparisons with NaN.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub f64);

impl Millis {
    /// Zero milliseconds.
    pub const ZERO: Millis = Millis(0.0);
    /// A time after the end of any plan.
    pub const INFINITY: Millis = Millis(f64::INFINITY);

    /// Whether two times agree up to the rounding of sums taken in another order.
    pub fn is_close(self, other: Millis) -> bool {
        (self.0 - other.0).abs() <= 1e-9 * self.0.abs().max(other.0.abs()).max(1.0)
    }
}

impl PartialEq for Millis {
    fn eq(&self, other: &Millis) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Millis {}

impl PartialOrd for Millis {
    fn partial_cmp(&self, other: &Millis) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Millis {
    fn cmp(&self, other: &Millis) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Add for Millis {
    type Output = Millis;
    fn add(self, other: Millis) -> Millis {
        Millis(self.0 + other.0)
    }
}

impl AddAssign for Millis {
    fn add_assign(&mut self, other: Millis) {
        self.0 += other.0;
    }
}

impl Sub for Millis {
    type Output = Millis;
    fn sub(self, other: Millis) -> Millis {
        Millis(self.0 - other.0)
    }
}

impl Mul<f64> for Millis {
    type Output = Millis;
    fn mul(self, factor: f64) -> Millis {
        Millis(self.0 * factor)
    }
}

impl Sum for Millis {
    fn sum<I: Iterator<Item = Millis>>(items: I) -> Millis {
        items.fold(Millis::ZERO, Add::add)
    }
}

/// A count (of ranks, micro-batches, sequences, bytes) as a float.
#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
pub(crate) fn count(n: impl TryInto<u64>) -> f64 {
    n.try_into().unwrap_or(u64::MAX) as f64
}

/// The whole part of a non-negative float as a count.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, which is what a limit wants"
)]
pub(crate) fn whole(x: f64) -> u64 {
    x as u64
}
