//! The errors of the comparison, each with a stable code.

use hydraulis_core::{Error as CoreError, Tokens, codes};
use thiserror::Error;

/// An error of the comparison.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// An error of the core.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// An error of the core in one batch of many.
    #[error("batch {batch}: {error}")]
    Batch {
        /// Index of the batch in the workload.
        batch: usize,
        /// Error of the core.
        error: CoreError,
    },
    /// A command line with an unknown, missing or wrong argument.
    #[error("{why}; see --help")]
    CommandLine {
        /// Message of the command line's parser.
        why: String,
    },
    /// A file that cannot be read.
    #[error("file '{path}' cannot be read ({why}): give the path of a readable text file")]
    FileUnreadable {
        /// Path of the file.
        path: String,
        /// Message of the operating system.
        why: String,
    },
    /// Records that cannot be written.
    #[error("'{path}' cannot be written ({why}): give a path in an existing folder, or - for standard output")]
    OutputUnwritable {
        /// Path of the output.
        path: String,
        /// Message of the operating system.
        why: String,
    },
    /// A line that is no length.
    #[error("file '{path}', line {line} is '{text}': a length is a whole number from 1; mend the line or leave it out")]
    LengthsFile {
        /// Path of the file.
        path: String,
        /// Number of the line, from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// A file that holds no tuning problems.
    #[error("file '{path}' has no instances: {why}")]
    InstancesFile {
        /// Path of the file.
        path: String,
        /// The reason.
        why: String,
    },
    /// A tuning problem that cannot be read.
    #[error("it cannot be read ({why}): correct this field; the other instances are solved without it")]
    InstanceUnreadable {
        /// The reader's message, with the path of the field.
        why: String,
    },
    /// A tuning problem with a field outside its limit.
    #[error("{field} is {value}: it must be {limit}; correct this field")]
    InstanceField {
        /// Name of the field.
        field: String,
        /// Value of the field.
        value: String,
        /// Range of the field.
        limit: String,
    },
    /// A file that is no array of arrays of lengths.
    #[error("file '{path}': {why}; it must be a JSON array with an array of lengths for each batch")]
    BatchesFile {
        /// Path of the file.
        path: String,
        /// The reader's message.
        why: String,
    },
    /// Text that is no distribution.
    #[error(
        "'{text}' is no distribution ({why}): write lognormal:MU,SIGMA,MAX with finite MU, SIGMA from 0 and a whole MAX from 1"
    )]
    Distribution {
        /// The given text.
        text: String,
        /// The fault of the text.
        why: &'static str,
    },
    /// A file with too few lengths.
    #[error(
        "the lengths fill {batches} batches of {tokens} tokens, {count} were asked, and a file is read once, in order: lower --count or --tokens-per-batch"
    )]
    TooFewLengths {
        /// Number of whole batches in the file.
        batches: usize,
        /// Least tokens of a batch.
        tokens: u64,
        /// Number of requested batches.
        count: usize,
    },
    /// A workload without batches, or with an empty batch.
    #[error("the workload is empty: give at least one batch, and at least one token per batch")]
    WorkloadEmpty,
    /// A seed for lengths from a file.
    #[error("--seed goes with lengths that are drawn; those of '{path}' are taken in the file's order: leave it out")]
    SeedUnused {
        /// Path of the file.
        path: String,
    },
    /// A plan that breaks a promise.
    #[error("a plan breaks a promise ({code}): {detail}; this is a fault of the planner")]
    PlanBroken {
        /// The checker's code.
        code: &'static str,
        /// The checker's detail.
        detail: String,
    },
    /// A lookahead plan that breaks a promise.
    #[error("a planned lookahead breaks a promise ({code}): {detail}; this is a fault of the planner")]
    LookaheadBroken {
        /// The checker's code.
        code: &'static str,
        /// The checker's detail.
        detail: String,
    },
    /// A step of the dynamic program's grid is outside its range.
    #[error("{field} is {value}: it must be {limit}; correct the grid of the dynamic program")]
    PaperGrid {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// Range of the field.
        limit: String,
    },
    /// No equal replicas can serve the whole run.
    #[error(
        "no strategy of equal replicas admits {tokens} tokens, the longest of the workload; the limit is {limit}: leave out {name}, or cut the sequences with --longest"
    )]
    NoStatic {
        /// The baseline that needs equal replicas.
        name: &'static str,
        /// Tokens of the longest sequence.
        tokens: Tokens,
        /// Most tokens of a sequence that some equal replicas admit.
        limit: Tokens,
    },
    /// A sequence that no strategy of a planner under test admits.
    #[error(
        "batch {batch}, sequence {sequence} has {tokens} tokens, the longest that {name} admits is {limit}: give it wider strategies, leave it out, or cut the sequences with --longest"
    )]
    NotAdmitted {
        /// Index of the batch in the workload.
        batch: usize,
        /// Index of the sequence in the batch.
        sequence: usize,
        /// Tokens of the sequence.
        tokens: Tokens,
        /// The planner under test.
        name: &'static str,
        /// Most tokens of a sequence that it admits.
        limit: Tokens,
    },
}

impl Error {
    /// Stable code of the error; the core's own code for an error of the core.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Core(error) | Error::Batch { error, .. } => error.code(),
            Error::FileUnreadable { .. } => "file_unreadable",
            Error::OutputUnwritable { .. } => "file_unwritable",
            Error::LengthsFile { .. }
            | Error::BatchesFile { .. }
            | Error::InstancesFile { .. }
            | Error::InstanceUnreadable { .. } => "data_file_invalid",
            Error::CommandLine { .. }
            | Error::Distribution { .. }
            | Error::TooFewLengths { .. }
            | Error::SeedUnused { .. } => "option_invalid",
            Error::WorkloadEmpty => codes::BATCH_EMPTY.name,
            Error::PlanBroken { .. } | Error::LookaheadBroken { .. } => "plan_broken",
            Error::PaperGrid { .. } | Error::InstanceField { .. } => codes::ARGUMENT_INVALID.name,
            Error::NoStatic { .. } | Error::NotAdmitted { .. } => codes::SEQUENCE_TOO_LONG.name,
        }
    }
}

/// A result of the comparison.
pub type Result<T> = std::result::Result<T, Error>;
