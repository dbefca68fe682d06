//! What cost profiles are refused for, and what they do not have.

use thiserror::Error;

use crate::spec::Scheme;

/// An error of cost profiles.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ProfileError {
    /// A profile that cannot be read.
    #[error("cost profile: {field}: {why}; see docs/cost-profile.md for the format")]
    Syntax {
        /// Path of the field inside the document.
        field: String,
        /// What is wrong.
        why: String,
    },
    /// A profile field out of its range.
    #[error(
        "cost profile '{profile}': {field} is {value}, it must be {limit}: correct it, or measure the profile again"
    )]
    Value {
        /// Name of the profile.
        profile: String,
        /// Path of the field.
        field: String,
        /// Its value.
        value: String,
        /// Its range.
        limit: String,
    },
    /// A name that is no preset.
    #[error("there is no preset profile '{name}': use one of {known}, or the path of a profile's JSON file")]
    PresetUnknown {
        /// The name asked.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A scheme the profile has no coefficients for.
    #[error("scheme {scheme} is not in cost profile '{profile}'{reason}: use one of {known}, or measure it")]
    SchemeUnknown {
        /// The scheme.
        scheme: Scheme,
        /// Name of the profile.
        profile: String,
        /// Why it was left out, if the profile says so.
        reason: String,
        /// The schemes there are.
        known: String,
    },
    /// A profile that nothing can be learnt from.
    #[error("cost profile '{profile}' does not say of which model it is: add its 'model', or learn from another")]
    ModelUnknown {
        /// Name of the profile.
        profile: String,
    },
}
