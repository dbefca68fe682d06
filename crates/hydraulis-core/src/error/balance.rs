//! Errors of balancing.

use thiserror::Error;

use crate::error::Grouped;
use crate::units::Tokens;

/// An error of balancing: of its options, of a sequence's values, or of a batch that has no balance under them.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BalanceError {
    /// A number of micro-batches is outside its range.
    #[error(
        "{field} is {value}: it must be between {from} and {limit}; give a number of micro-batches for each replica",
        value = Grouped(.value),
        limit = Grouped(.limit)
    )]
    MicroBatches {
        /// Name of the option.
        field: &'static str,
        /// Value of the option.
        value: i64,
        /// Least value.
        from: i64,
        /// Largest value.
        limit: i64,
    },
    /// The exact number of micro-batches contradicts another option.
    #[error(
        "micro_batches is {exact}: it must be at least least_micro_batches = {least} and a multiple of multiple_of = {multiple}; leave both options out, or change the number"
    )]
    MicroBatchesContradict {
        /// Exact number of micro-batches.
        exact: usize,
        /// Least number of micro-batches.
        least: usize,
        /// Divisor of the number.
        multiple: usize,
    },
    /// The replicas together have more micro-batches than a balance may have.
    #[error(
        "{replicas} replicas with {micro_batches} micro-batches each: together the limit is {limit}; give fewer micro-batches, or a smaller multiple_of",
        replicas = Grouped(.replicas),
        micro_batches = Grouped(.micro_batches),
        limit = Grouped(.limit)
    )]
    TooManyMicroBatches {
        /// Number of replicas.
        replicas: usize,
        /// Least number of micro-batches of a replica.
        micro_batches: usize,
        /// Largest number of micro-batches of all replicas.
        limit: usize,
    },
    /// The time of a micro-batch without its sequences is outside its range.
    #[error(
        "fixed_ms is {value}: it must be between 0 and {limit:e}; give the time of a micro-batch without its sequences"
    )]
    FixedTime {
        /// Value of the option.
        value: String,
        /// Largest value.
        limit: f64,
    },
    /// A replica's speed is outside its range.
    #[error(
        "speeds: replica {replica} has {value}: a speed is a number from 1e-9 to 1e9, in proportion to the others; correct it"
    )]
    Speed {
        /// Position of the replica.
        replica: usize,
        /// Value of the speed.
        value: String,
    },
    /// The speeds and the replicas differ in number.
    #[error("{speeds} speeds were given for {replicas} replicas: give one speed per replica, or none for equal speeds")]
    SpeedsMismatch {
        /// Number of speeds.
        speeds: usize,
        /// Number of replicas.
        replicas: usize,
    },
    /// The values of an argument and the lengths differ in number.
    #[error(
        "{values} values of {field} were given for {sequences} sequences: give one value per sequence",
        values = Grouped(.values),
        sequences = Grouped(.sequences)
    )]
    ValuesMismatch {
        /// Name of the argument.
        field: &'static str,
        /// Number of values.
        values: usize,
        /// Number of sequences.
        sequences: usize,
    },
    /// A sequence's own work is outside its range.
    #[error("work_ms: sequence {sequence} has {value}: a work is between 0 and {limit:e}; give a time in ms")]
    Work {
        /// Position of the sequence.
        sequence: usize,
        /// Value of the work.
        value: String,
        /// Largest value.
        limit: f64,
    },
    /// A sequence's number of extra tokens is outside its range.
    #[error(
        "extra_tokens: sequence {sequence} has {value}: the number must be between 0 and {limit}; correct it",
        value = Grouped(.value),
        limit = Grouped(.limit)
    )]
    ExtraTokens {
        /// Position of the sequence.
        sequence: usize,
        /// Value of the number.
        value: i64,
        /// Largest value.
        limit: i64,
    },
    /// One of the extra tokens and their cap is given without the other.
    #[error("{given} is given without {missing}: give both, or neither")]
    ExtraTokensAlone {
        /// Argument that is given.
        given: &'static str,
        /// Argument that is missing.
        missing: &'static str,
    },
    /// A sequence has more extra tokens than a micro-batch may have.
    #[error(
        "sequence {sequence} has {tokens} extra tokens, and a micro-batch has at most cap_extra_tokens = {cap}: leave the sequence out, or raise cap_extra_tokens",
        tokens = Grouped(.tokens),
        cap = Grouped(.cap)
    )]
    ExtraAboveCap {
        /// Position of the sequence.
        sequence: usize,
        /// Extra tokens of the sequence.
        tokens: Tokens,
        /// Cap on extra tokens.
        cap: Tokens,
    },
    /// A group has more tokens than a micro-batch may have.
    #[error(
        "group {group} has {sequences} sequences, from sequence {first} on, with {tokens} {kind}, and a micro-batch has at most {field} = {cap}: divide the group, or raise {field}",
        tokens = Grouped(.tokens),
        cap = Grouped(.cap)
    )]
    GroupAboveCap {
        /// Id of the group.
        group: i64,
        /// Number of its sequences.
        sequences: usize,
        /// Position of its first sequence.
        first: usize,
        /// Tokens or extra tokens of the group.
        tokens: Tokens,
        /// Kind of tokens, as the message names it.
        kind: &'static str,
        /// Name of the cap.
        field: &'static str,
        /// The cap.
        cap: Tokens,
    },
    /// Groups of several sizes are given where replicas must have equal numbers of sequences.
    #[error(
        "equal_sequences needs groups of one size: group {group} has {sequences} sequences, and group {other} has {others}; give groups of one size, or leave equal_sequences out"
    )]
    GroupsUnequal {
        /// Id of a group.
        group: i64,
        /// Number of its sequences.
        sequences: usize,
        /// Id of a group of another size.
        other: i64,
        /// Number of its sequences.
        others: usize,
    },
    /// The batch has fewer sequences than micro-batches.
    #[error(
        "the batch has {sequences} {kind}, and {replicas} replicas with {micro_batches} micro-batches each need at least {needed}: give a larger batch, fewer micro-batches, or allow_empty"
    )]
    TooFewSequences {
        /// Number of sequences or groups.
        sequences: usize,
        /// "sequences", or "groups".
        kind: &'static str,
        /// Number of replicas.
        replicas: usize,
        /// Least number of micro-batches of a replica.
        micro_batches: usize,
        /// Number of sequences or groups that fill them.
        needed: usize,
    },
    /// The batch has fewer sequences than the micro-batches that replicas with unequal numbers of them need.
    #[error(
        "the batch has {sequences} {kind}, and {replicas} replicas need at least {needed} to fill their micro-batches under the caps and multiple_of: give a larger batch, greater caps, a smaller multiple_of, or allow_empty"
    )]
    TooFewUnderCap {
        /// Number of sequences or groups.
        sequences: usize,
        /// "sequences", or "groups".
        kind: &'static str,
        /// Number of replicas.
        replicas: usize,
        /// Least number of micro-batches of all replicas.
        needed: usize,
    },
    /// The algorithm finds no packing under the caps.
    #[error(
        "no packing was found of {sequences} {kind} with {tokens} tokens into {micro_batches} micro-batches for each of {replicas} replicas under cap_tokens = {cap}: give a smaller batch, another number of micro-batches, a greater cap, or allow_empty",
        tokens = Grouped(.tokens),
        cap = Grouped(.cap)
    )]
    NoPacking {
        /// Number of sequences or groups.
        sequences: usize,
        /// "sequences", or "groups".
        kind: &'static str,
        /// Tokens of the batch.
        tokens: Tokens,
        /// The number of micro-batches of a replica.
        micro_batches: usize,
        /// Number of replicas.
        replicas: usize,
        /// Cap of a micro-batch.
        cap: Tokens,
    },
}
