//! Small linear programs: a covering program with column generation, and non-negative least squares.

mod covering;
mod non_negative;

pub(crate) use covering::Covering;
pub(crate) use non_negative::{Row, dot, inverse, non_negative};
