//! Cost profiles: prediction, reading and fit.

pub(crate) mod fit;
pub(crate) mod profile;
