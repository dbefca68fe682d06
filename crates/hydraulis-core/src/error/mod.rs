//! The core's errors: one enum with the offending values, and one enum for each part with many cases.
//!
//! An error is data. Its message is written here alone and says which field or sequence is wrong, its value, the limit
//! and the remedy. `codes` defines the stable codes, from which `docs/errors.md` is generated.

mod balance;
mod cluster;
mod code;
pub mod codes;
mod fit;
mod grouped;
mod layout;
mod link;
mod profile;
mod strategy;
mod window;

use thiserror::Error;

use crate::spec::{Cluster, MAX_GPUS, Scheme};
use crate::units::Tokens;

pub use balance::BalanceError;
pub use cluster::ClusterError;
pub use code::ErrorKind;
pub use codes::ErrorCode;
pub use fit::FitError;
pub(crate) use grouped::Grouped;
pub use layout::LayoutError;
pub use link::LinkError;
pub use profile::ProfileError;
pub use strategy::{Admitting, StrategyError};
pub use window::WindowError;

const MIB: u64 = 1 << 20;

/// An error of the core.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// A batch has no sequence.
    #[error("the batch is empty: give at least one sequence length")]
    BatchEmpty,
    /// A length is below one, or above the limit of exact arithmetic on a batch.
    #[error(
        "sequence {sequence} has length {length}: a length is a whole number from 1 to {limit}; correct the length or leave the sequence out",
        length = Grouped(.length),
        limit = Grouped(.limit)
    )]
    LengthOutOfRange {
        /// Position in the batch.
        sequence: usize,
        /// Length of the sequence.
        length: i64,
        /// Largest length.
        limit: i64,
    },
    /// The target counts and the lengths differ in number.
    #[error(
        "{targets} target counts were given for {sequences} sequences: give one count per sequence, or none to use the lengths",
        targets = Grouped(.targets),
        sequences = Grouped(.sequences)
    )]
    TargetsMismatch {
        /// Number of target counts.
        targets: usize,
        /// Number of sequences.
        sequences: usize,
    },
    /// A target count is below zero or above the length.
    #[error(
        "sequence {sequence} has {targets} target tokens: the count must be between 0 and its length of {length}; correct the count",
        targets = Grouped(.targets),
        length = Grouped(.length)
    )]
    TargetOutOfRange {
        /// Position in the batch.
        sequence: usize,
        /// Target count of the sequence.
        targets: i64,
        /// Length of the sequence.
        length: u64,
    },
    /// The whole batch has no target token: its mean loss would be 0/0.
    #[error(
        "no sequence of the batch has a target token, so its mean loss is undefined: add a sequence with a target token"
    )]
    NoTargets,
    /// The counts and the lengths of a histogram differ in number.
    #[error(
        "{counts} counts were given for {lengths} lengths: give one count per length, or none to count each length once",
        counts = Grouped(.counts),
        lengths = Grouped(.lengths)
    )]
    CountsMismatch {
        /// Number of counts.
        counts: usize,
        /// Number of lengths.
        lengths: usize,
    },
    /// A count of a histogram is below zero, or the sum of the counts is too large.
    #[error(
        "entry {entry} of the histogram has count {count}: the count must be between 0 and {limit}; correct the count",
        count = Grouped(.count),
        limit = Grouped(.limit)
    )]
    CountOutOfRange {
        /// Position among the lengths.
        entry: usize,
        /// Count of the entry.
        count: i64,
        /// Largest count that the counts before it leave.
        limit: i64,
    },
    /// A list of batches is empty.
    #[error("no batches were given, or batches of 0 tokens: give at least one batch of at least one token")]
    NoBatches,
    /// One batch of several has an error.
    #[error("batch {batch}: {error}")]
    InBatch {
        /// Position among the batches.
        batch: usize,
        /// Error of the batch.
        error: Box<Error>,
    },
    /// The requested context is longer than every strategy admits.
    #[error(
        "the requested context has {context} tokens; the longest sequence that any strategy admits has {limit}: lower the context, allow a wider scheme, or give the ranks more memory",
        context = Grouped(.context),
        limit = Grouped(.limit)
    )]
    ContextTooLong {
        /// Requested context.
        context: Tokens,
        /// Longest admissible length.
        limit: Tokens,
    },
    /// A text is no memory rule.
    #[error("memory is '{text}': it must be 'per_micro_batch' or 'in_flight'; use one of them")]
    MemoryRule {
        /// The text.
        text: String,
    },
    /// The caller cancelled the computation.
    #[error("the caller stopped the computation before its end, so it has no result; repeat the call to get one")]
    Stopped,
    /// A coefficient of a sequence's time is outside its range.
    #[error(
        "{field} is {value}: both coefficients must be between 0 and {limit:e}, and one of them above 0; give the time of a token and of a squared token"
    )]
    SequenceCost {
        /// Name of the coefficient.
        field: &'static str,
        /// Value of the coefficient.
        value: String,
        /// Largest value.
        limit: f64,
    },
    /// The number of equal replicas is outside its range.
    #[error(
        "replicas is {replicas}: it must be between 1 and {limit}; give the number of data-parallel replicas",
        replicas = Grouped(.replicas),
        limit = Grouped(.limit)
    )]
    ReplicaCount {
        /// Requested number of replicas.
        replicas: i64,
        /// Largest number of replicas.
        limit: i64,
    },
    /// An error of balancing.
    #[error(transparent)]
    Balance(#[from] BalanceError),
    /// An error of offline packing.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// An error of a layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A limit on tokens is outside its range.
    #[error(
        "{field} is {value}: it must be between 1 and {limit}; give a number of tokens in this range",
        value = Grouped(.value),
        limit = Grouped(.limit)
    )]
    TokenLimit {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: i64,
        /// Largest value.
        limit: i64,
    },
    /// Drawn batches would have too many sequences together.
    #[error(
        "{batches} batches of {tokens} tokens have about {expected} sequences together, and the limit is {limit}: lower \
         tokens_per_batch or count",
        batches = Grouped(.batches),
        tokens = Grouped(.tokens),
        expected = Grouped(.expected),
        limit = Grouped(.limit)
    )]
    DrawLimit {
        /// Tokens of a batch.
        tokens: Tokens,
        /// Number of batches.
        batches: usize,
        /// Number of sequences to expect.
        expected: u64,
        /// Greatest number.
        limit: u64,
    },
    /// The GPUs do not fill whole nodes or a part of one.
    #[error(
        "a cluster of {gpus} GPUs in nodes of {gpus_per_node}: a cluster has 1 to {} GPUs, which fill whole nodes or a part of one; change either number",
        Grouped(MAX_GPUS),
        gpus = Grouped(.gpus),
        gpus_per_node = Grouped(.gpus_per_node)
    )]
    ClusterShape {
        /// GPUs of the cluster.
        gpus: i64,
        /// GPUs of a node.
        gpus_per_node: i64,
    },
    /// An error of the ranks of a cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// An error of a strategy.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// An error of a cost profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// An error of fitting costs to measured times.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// An error of links.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A field of a model's shape is outside its range.
    #[error("model: {field} is {value}, it must be {limit}; correct the model's shape", value = Grouped(.value))]
    ModelShape {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// Range of the field.
        limit: String,
    },
    /// A device has no data sheet.
    #[error("there is no data sheet for device '{name}': use one of {known}, or measure a profile on the device")]
    DeviceUnknown {
        /// Name of the device.
        name: String,
        /// Names of the devices with a data sheet.
        known: String,
    },
    /// A plan document cannot be read.
    #[error("plan: {field}: {why}; give the unchanged JSON that Plan.to_json wrote")]
    PlanSyntax {
        /// Path of the field inside the document.
        field: String,
        /// Cause of the refusal.
        why: String,
    },
    /// A plan and a planner are for different clusters.
    #[error(
        "the plan is for a cluster of {plan}, and the planner is for {planner}: use a planner for the plan's cluster, with its ranks' rates and memory"
    )]
    OtherCluster {
        /// Cluster of the plan.
        plan: Box<Cluster>,
        /// Cluster of the planner.
        planner: Box<Cluster>,
    },
    /// Measured durations and a plan's computations differ in number.
    #[error(
        "{given:?} durations were given (by replica, by stage) and the plan has {expected:?} computations: give one duration for each forward and backward, in order"
    )]
    DurationsMismatch {
        /// Numbers of given durations, by replica and stage.
        given: Vec<Vec<usize>>,
        /// Numbers of computations, by replica and stage.
        expected: Vec<Vec<usize>>,
    },
    /// A sequence is longer than every replica admits.
    #[error(
        "sequence {sequence} has {tokens} tokens; the longest that {admitting} admits is {limit}{on}: cut the sequence, allow a wider scheme, or give the ranks more memory",
        tokens = Grouped(.tokens),
        limit = Grouped(.limit),
        on = .scheme.map(|scheme| format!(" (on {scheme})")).unwrap_or_default()
    )]
    SequenceTooLong {
        /// Position in the batch.
        sequence: usize,
        /// Length of the sequence.
        tokens: Tokens,
        /// The strategies that might admit it.
        admitting: Admitting,
        /// Longest admissible length.
        limit: Tokens,
        /// The scheme with that limit.
        scheme: Option<Scheme>,
    },
    /// A sequence is longer than the token cap of equal replicas.
    #[error(
        "sequence {sequence} has {tokens} tokens, and a micro-batch has at most cap_tokens = {cap}: cut the sequence, or raise cap_tokens",
        tokens = Grouped(.tokens),
        cap = Grouped(.cap)
    )]
    SequenceAboveCap {
        /// Position in the batch.
        sequence: usize,
        /// Length of the sequence.
        tokens: Tokens,
        /// The token cap.
        cap: Tokens,
    },
    /// No scheme of a profile that can be placed on the cluster fits into memory.
    #[error(
        "no scheme of cost profile '{profile}' that can be placed on {gpus} GPUs leaves memory for a token: {least} needs the least memory, and its weights, gradients, optimizer shard and margin take {} of {} MiB; use a larger cluster, or a profile with wider schemes or more memory",
        Grouped(.needed.div_ceil(MIB)),
        Grouped(.available / MIB)
    )]
    SchemesTooLarge {
        /// Name of the profile.
        profile: String,
        /// GPUs of the cluster.
        gpus: u32,
        /// Scheme that needs the least memory.
        least: Scheme,
        /// Bytes of that scheme before the first token.
        needed: u64,
        /// Bytes of a GPU.
        available: u64,
    },
    /// A scheme does not fit into memory.
    #[error(
        "scheme {scheme} leaves no memory for {multiple} tokens, the smallest micro-batch, on {gpus} GPUs: its weights, gradients, optimizer shard and margin take {} of {} MiB; use a wider scheme, more GPUs or more memory",
        Grouped(.needed.div_ceil(MIB)),
        Grouped(.available / MIB)
    )]
    SchemeTooLarge {
        /// The scheme.
        scheme: Scheme,
        /// GPUs of the cluster.
        gpus: u32,
        /// Bytes of the scheme before the first token.
        needed: u64,
        /// Divisor of every token cap, in tokens.
        multiple: u64,
        /// Bytes of a GPU.
        available: u64,
    },
    /// A scheme's activations find no room in host memory.
    #[error(
        "scheme {scheme} copies activations to host memory: {multiple} tokens, the smallest micro-batch, take {} MiB of it, but planner.host_memory_mib = {} for a rank; raise it where the nodes have more, leave offload out of planner.checkpointing, or use a wider scheme",
        Grouped(.needed.div_ceil(MIB)),
        .available / MIB
    )]
    HostMemoryTooSmall {
        /// The scheme.
        scheme: Scheme,
        /// Divisor of every token cap, in tokens.
        multiple: u64,
        /// Bytes of host memory for that micro-batch.
        needed: u64,
        /// Bytes of host memory of a rank.
        available: u64,
    },
    /// A slowdown names no rank of the cluster, or has an invalid factor.
    #[error(
        "rank {rank} has slowdown {factor}: ranks are 0 to {}, and factors are from {least} to {limit}; correct the rank or the factor",
        .gpus - 1
    )]
    Slowdown {
        /// The rank.
        rank: u32,
        /// Factor of its times.
        factor: String,
        /// Least factor.
        least: f64,
        /// Greatest factor.
        limit: f64,
        /// Ranks of the cluster.
        gpus: u32,
    },
    /// The cost of a change of strategy is outside its range.
    #[error("switch_ms is {value}: it must be finite and at least 0; give the time of a change of strategy in ms")]
    SwitchCost {
        /// The cost.
        value: String,
    },
    /// The cost of the head is outside its range.
    #[error("head_layers is {value}: it must be finite and at least 0; give the cost of the head in layers")]
    HeadLayers {
        /// The cost.
        value: String,
    },
    /// A list of layers per stage is no split of the model's layers.
    #[error("stage_layers[{index}] = {value}: {why}; give the layers of each stage, one list per number of stages")]
    LayerSplit {
        /// Position of the list.
        index: usize,
        /// The list.
        value: String,
        /// Cause of the refusal.
        why: String,
    },
    /// A scheme has more stages than the model has layers.
    #[error(
        "scheme {scheme} has {stages} pipeline stages and the model has {layers} layers: a stage needs at least one layer; use a smaller pp"
    )]
    TooManyStages {
        /// The scheme.
        scheme: Scheme,
        /// Stages of the scheme.
        stages: u16,
        /// Layers of the model.
        layers: u32,
    },
    /// A scheme splits another number of layers than the model has.
    #[error(
        "scheme {scheme} splits {given} layers and the model has {layers}: give each stage its part of the {layers}"
    )]
    OtherSplit {
        /// The scheme.
        scheme: Scheme,
        /// Layers of its stages together.
        given: u32,
        /// Layers of the model.
        layers: u32,
    },
}

impl Error {
    /// The same error with the position of its batch.
    pub(crate) fn in_batch(self, batch: usize) -> Error {
        Error::InBatch { batch, error: Box::new(self) }
    }
}

/// A result of the core.
pub type Result<T> = std::result::Result<T, Error>;
