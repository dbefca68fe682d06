//! The half-width of an interval of 95 %, in standard errors.

/// Student's t at 97.5 % for 1 to 30 degrees of freedom; beyond these the normal distribution is close enough.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same for the normal distribution.
pub(super) const NORMAL: f64 = 1.960;

/// The factor for that many degrees of freedom; without any, the interval is unbounded.
pub(super) fn t_95(degrees_of_freedom: usize) -> f64 {
    match degrees_of_freedom {
        0 => f64::INFINITY,
        n => T.get(n - 1).copied().unwrap_or(NORMAL),
    }
}
