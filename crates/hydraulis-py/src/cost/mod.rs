//! Cost profiles, predicted, read and fitted.

pub(crate) mod fit;
pub(crate) mod profile;
