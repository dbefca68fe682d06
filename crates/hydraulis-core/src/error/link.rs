//! Errors of links and of the traffic over them.

use thiserror::Error;

use crate::spec::LinkRates;

/// An error of links or of the traffic over them.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LinkError {
    /// A rate is outside its range.
    #[error(
        "{field} is {value}: it must be between {:e} and {:e}; give the rate in GB/s (1e9 bytes a second) from each node (gigabytes_per_s) and from each GPU inside a node (gpu_gigabytes_per_s)",
        LinkRates::LEAST,
        LinkRates::MOST
    )]
    Rate {
        /// Name of the rate.
        field: &'static str,
        /// The rate.
        value: String,
    },
    /// A text does not have the form of link rates.
    #[error(
        "{value:?} does not have the form of link rates: write NODE[,GPU[,MESSAGE]], up to three numbers in GB/s, GB/s and microseconds"
    )]
    Syntax {
        /// The text.
        value: String,
    },
    /// A profile does not name its model, so the volume of its transfers is unknown.
    #[error(
        "cost profile '{profile}' does not name its model, so the volume of its transfers is unknown: add 'model' to it, or leave links out"
    )]
    ModelUnknown {
        /// Name of the profile.
        profile: String,
    },
    /// The bytes of an element are outside their range.
    #[error("{field} of a link is {value}: it must be between 0 and {limit}; give the bytes of one element")]
    ElementBytes {
        /// Name of the field.
        field: &'static str,
        /// Bytes of an element.
        value: u32,
        /// Largest number of bytes.
        limit: u32,
    },
    /// The time of a message is outside its range.
    #[error(
        "message_us is {value}: it must be between 0 and {:e}; give the time of a message without its bytes, in microseconds",
        LinkRates::LONGEST_MESSAGE_US
    )]
    MessageTime {
        /// The time.
        value: String,
    },
    /// The slowdown of a node's links is outside its range.
    #[error(
        "the links of node {node} have slowdown {value}: it must be between 1 and {limit}; give the time of the node's transfers over that at full rate"
    )]
    NodeSlowdown {
        /// Number of the node.
        node: usize,
        /// The slowdown.
        value: String,
        /// Largest slowdown.
        limit: f64,
    },
    /// Slowdowns are not those of all nodes of a cluster.
    #[error("{given} slowdowns of links for {nodes} nodes: give one for each node, or none")]
    NodeCount {
        /// Number of slowdowns.
        given: usize,
        /// Number of nodes.
        nodes: u64,
    },
    /// A value of a network is outside its range.
    #[error("{field} of the network is {value}: it must be finite and {limit}; correct it, or leave the network out")]
    NetworkValue {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// Range of the field.
        limit: &'static str,
    },
}
