//! What links, and what travels over them, are refused for.

use thiserror::Error;

use crate::spec::LinkRates;

/// An error of links, or of what travels over them.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LinkError {
    /// Links that carry nothing, or whatever one likes.
    #[error(
        "{field} is {value}: the limits are {:e} and {:e}; give what is sent a second, in 1e9 bytes, from each node (gigabytes_per_s) and from each GPU inside one (gpu_gigabytes_per_s)",
        LinkRates::LEAST,
        LinkRates::MOST
    )]
    Rate {
        /// Which rate.
        field: &'static str,
        /// The rate given.
        value: String,
    },
    /// Rates of links that are not written as such.
    #[error(
        "{value:?} is not written as rates of links: NODE[,GPU[,MESSAGE]], up to three numbers in GB/s, GB/s and microseconds; write it so"
    )]
    Syntax {
        /// The text given.
        value: String,
    },
    /// Links of a model that nobody knows.
    #[error(
        "cost profile '{profile}' does not say of which model it is, so what travels over links is not known: add 'model' to it, or leave links out"
    )]
    ModelUnknown {
        /// Name of the profile.
        profile: String,
    },
    /// Elements that nothing is computed in.
    #[error("{field} of a link is {value}: the limits are 0 and {limit}; give the bytes of one element")]
    ElementBytes {
        /// Whose elements.
        field: &'static str,
        /// The bytes given.
        value: u32,
        /// Most bytes of an element.
        limit: u32,
    },
    /// A time of a message that is none.
    #[error(
        "message_us is {value}: the limits are 0 and {:e}; give what a message takes beside its bytes",
        LinkRates::LONGEST_MESSAGE_US
    )]
    MessageTime {
        /// The time given.
        value: String,
    },
    /// A value of a network that no wire has.
    #[error("{field} of the network is {value}: it must be finite and {limit}; correct it, or leave the network out")]
    NetworkValue {
        /// The field.
        field: &'static str,
        /// The value given.
        value: String,
        /// What it must be.
        limit: &'static str,
    },
}
