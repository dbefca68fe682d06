//! Cost profiles: predicted, fitted and shipped.

mod analytic;
mod fit;
pub(crate) mod presets;
