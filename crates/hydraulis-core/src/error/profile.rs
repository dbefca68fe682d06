//! Errors of cost profiles.

use thiserror::Error;

use crate::spec::Scheme;

/// An error of cost profiles.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ProfileError {
    /// A profile cannot be read.
    #[error("cost profile: {field}: {why}; see docs/cost-profile.md for the format")]
    Syntax {
        /// Path of the field inside the document.
        field: String,
        /// Cause of the refusal.
        why: String,
    },
    /// A field of a profile is outside its range.
    #[error(
        "cost profile '{profile}': {field} is {value}, it must be {limit}: correct it, or measure the profile again"
    )]
    Value {
        /// Name of the profile.
        profile: String,
        /// Path of the field.
        field: String,
        /// Value of the field.
        value: String,
        /// Range of the field.
        limit: String,
    },
    /// A name is no preset.
    #[error("there is no preset profile '{name}': use one of {known}, or the path of a profile's JSON file")]
    PresetUnknown {
        /// The name.
        name: String,
        /// Names of the presets.
        known: String,
    },
    /// The profile has no coefficients for a scheme.
    #[error("scheme {scheme} is not in cost profile '{profile}'{reason}: use one of {known}, or measure it")]
    SchemeUnknown {
        /// The scheme.
        scheme: Scheme,
        /// Name of the profile.
        profile: String,
        /// The profile's reason for leaving the scheme out, if it has one.
        reason: String,
        /// Schemes of the profile; of many those of the same degrees, and their number.
        known: String,
    },
    /// A profile does not name its model, so no figure of another profile can be derived from it.
    #[error("cost profile '{profile}' does not name its model: add its 'model', or take another profile")]
    ModelUnknown {
        /// Name of the profile.
        profile: String,
    },
}
