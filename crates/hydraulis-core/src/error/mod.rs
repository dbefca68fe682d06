//! Everything the core can refuse: one enum with the offending values, and one inside it for each part that has many; one
//! stable code each.
//!
//! Errors are data until the last moment: the sentence is made here and nowhere else, and says what is
//! wrong, the value, the limit, and what to do. `docs/errors.md` has one heading per code.

mod code;
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

pub use code::ErrorKind;
pub use fit::FitError;
pub(crate) use grouped::Grouped;
pub use layout::LayoutError;
pub use link::LinkError;
pub use profile::ProfileError;
pub use strategy::StrategyError;
pub use window::WindowError;

const MIB: u64 = 1 << 20;

/// An error of the core.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// A batch without sequences.
    #[error("the batch is empty: give at least one sequence length")]
    BatchEmpty,
    /// A length below one, or beyond what arithmetic on a batch allows.
    #[error(
        "sequence {sequence} has length {length}: lengths are whole numbers from 1 to {limit}; drop the sequence or mend its length",
        length = Grouped(.length),
        limit = Grouped(.limit)
    )]
    LengthOutOfRange {
        /// Position in the batch.
        sequence: usize,
        /// The length given.
        length: i64,
        /// The greatest length.
        limit: i64,
    },
    /// Target counts that do not go with the lengths.
    #[error(
        "{targets} target counts were given for {sequences} sequences: give one for each, or none to take the lengths",
        targets = Grouped(.targets),
        sequences = Grouped(.sequences)
    )]
    TargetsMismatch {
        /// Number of target counts.
        targets: usize,
        /// Number of sequences.
        sequences: usize,
    },
    /// A target count below zero or above the length.
    #[error(
        "sequence {sequence} has {targets} target tokens: the limit is 0 to its length of {length}; mend the count",
        targets = Grouped(.targets),
        length = Grouped(.length)
    )]
    TargetOutOfRange {
        /// Position in the batch.
        sequence: usize,
        /// The count given.
        targets: i64,
        /// The length of the sequence.
        length: u64,
    },
    /// No target token in the whole batch: its mean loss would be 0/0.
    #[error("no sequence of the batch has a target token, so its mean loss is undefined: add a sequence that has one")]
    NoTargets,
    /// Counts that do not go with the lengths of a histogram.
    #[error(
        "{counts} counts were given for {lengths} lengths: give one for each, or none to count each length once",
        counts = Grouped(.counts),
        lengths = Grouped(.lengths)
    )]
    CountsMismatch {
        /// Number of counts.
        counts: usize,
        /// Number of lengths.
        lengths: usize,
    },
    /// A count below zero, or too many sequences.
    #[error(
        "entry {entry} of the histogram has count {count}: the limit is 0 to {limit}; mend the count",
        count = Grouped(.count),
        limit = Grouped(.limit)
    )]
    CountOutOfRange {
        /// Position among the lengths.
        entry: usize,
        /// The count given.
        count: i64,
        /// Most sequences there may be beside those of shorter lengths.
        limit: i64,
    },
    /// Nothing to learn from.
    #[error("no batches were given, or batches of 0 tokens: give at least one batch of at least one token")]
    NoBatches,
    /// An error in one batch of several.
    #[error("batch {batch}: {error}")]
    InBatch {
        /// Position among the batches.
        batch: usize,
        /// What is wrong with it.
        error: Box<Error>,
    },
    /// A stated context that no replica may hold.
    #[error(
        "a context of {context} tokens was asked for; the longest sequence that any strategy admits is {limit}: lower the context, allow a wider scheme, or give the ranks more memory",
        context = Grouped(.context),
        limit = Grouped(.limit)
    )]
    ContextTooLong {
        /// The context.
        context: Tokens,
        /// The longest admissible length.
        limit: Tokens,
    },
    /// A text that names no memory rule.
    #[error("memory is '{text}': it is 'cap' or 'exact'; give one of them")]
    MemoryRule {
        /// The text.
        text: String,
    },
    /// Steps of a dynamic program that are no steps.
    #[error(
        "{field} is {value}, it must be {limit}: correct the grid of the dynamic program",
        value = Grouped(.value)
    )]
    PaperGrid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Its range.
        limit: String,
    },
    /// The caller's word.
    #[error("stopped by the caller before it was done: nothing was decided, ask again")]
    Stopped,
    /// A cost of a sequence that is no time.
    #[error(
        "{field} is {value}: the limits are 0 and any finite number, and one of both coefficients is above 0; give what a token and its square take"
    )]
    SequenceCost {
        /// The coefficient.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// A number of equal replicas that cannot be.
    #[error(
        "replicas is {replicas}: the limits are 1 and {limit}; give the number of data-parallel replicas",
        replicas = Grouped(.replicas),
        limit = Grouped(.limit)
    )]
    ReplicaCount {
        /// The number asked.
        replicas: i64,
        /// The greatest number.
        limit: i64,
    },
    /// What cannot be packed offline.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// A layout that cannot be, or ranks that have no place in it.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A limit on tokens that cannot be one.
    #[error(
        "{field} is {value}: the limits are 1 and {limit}; give the most tokens that may stand together",
        value = Grouped(.value),
        limit = Grouped(.limit)
    )]
    TokenLimit {
        /// The field.
        field: &'static str,
        /// Its value.
        value: i64,
        /// The greatest value.
        limit: i64,
    },
    /// A cluster that cannot exist.
    #[error(
        "a cluster of {gpus} GPUs in nodes of {gpus_per_node}: the limits are 1 to {} GPUs, which fill whole nodes or a part of one; change either number",
        Grouped(MAX_GPUS),
        gpus = Grouped(.gpus),
        gpus_per_node = Grouped(.gpus_per_node)
    )]
    ClusterShape {
        /// GPUs asked.
        gpus: i64,
        /// GPUs of a node.
        gpus_per_node: i64,
    },
    /// A strategy that cannot be, or has no place.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// A cost profile that cannot be read, or lacks what is asked of it.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Measured times that no costs can be learnt from.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// Links that cannot be, or of which too little is known.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A shape that no model has.
    #[error("model: {field} is {value}, it must be {limit}; correct the model's shape", value = Grouped(.value))]
    ModelShape {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// Its range.
        limit: String,
    },
    /// A device without a data sheet.
    #[error("there is no device '{name}': use one of {known}, or measure a profile on yours")]
    DeviceUnknown {
        /// The name asked.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A plan that cannot be read.
    #[error("plan: {field}: {why}; it must be the JSON that Plan.to_json wrote")]
    PlanSyntax {
        /// Path of the field inside the document.
        field: String,
        /// What is wrong.
        why: String,
    },
    /// A plan for other GPUs than those it is to run on.
    #[error(
        "the plan is for a cluster of {} GPUs in nodes of {}, and the planner for {} in nodes of {}: give it to a planner for its own",
        Grouped(.plan.gpus()),
        .plan.gpus_per_node(),
        Grouped(.planner.gpus()),
        .planner.gpus_per_node()
    )]
    OtherCluster {
        /// The plan's cluster.
        plan: Cluster,
        /// The planner's.
        planner: Cluster,
    },
    /// Measured durations that do not go with the plan.
    #[error(
        "durations were given in numbers {given:?} (by replica, by stage), the plan computes {expected:?} times: give one for each forward and backward, in order"
    )]
    DurationsMismatch {
        /// Durations given, by replica and stage.
        given: Vec<Vec<usize>>,
        /// Durations needed.
        expected: Vec<Vec<usize>>,
    },
    /// A sequence that no replica may hold.
    #[error(
        "sequence {sequence} has {tokens} tokens; the longest that {subject} admits is {limit}{on}: cut the sequence, allow a wider scheme, or give the ranks more memory",
        tokens = Grouped(.tokens),
        limit = Grouped(.limit)
    )]
    SequenceTooLong {
        /// Position in the batch.
        sequence: usize,
        /// Its tokens.
        tokens: Tokens,
        /// What was searched: a strategy, or a list of them.
        subject: String,
        /// The longest admissible length.
        limit: Tokens,
        /// The scheme that sets the limit.
        on: String,
    },
    /// A sequence that no micro-batch of equal replicas may hold.
    #[error(
        "sequence {sequence} has {tokens} tokens, more than cap_tokens = {cap}, which a micro-batch holds: cut the sequence, or raise cap_tokens",
        tokens = Grouped(.tokens),
        cap = Grouped(.cap)
    )]
    SequenceAboveCap {
        /// Position in the batch.
        sequence: usize,
        /// Its tokens.
        tokens: Tokens,
        /// The cap.
        cap: Tokens,
    },
    /// No scheme of a profile that has a place on the cluster fits into memory.
    #[error(
        "no scheme of cost profile '{profile}' that has a place on {gpus} GPUs leaves memory for a token: {least} takes the least, and its weights, gradients, share of the optimizer state and margin need {} of {} MiB; plan for a larger cluster, or take a profile that has wider schemes or more memory",
        Grouped(.needed.div_ceil(MIB)),
        Grouped(.available / MIB)
    )]
    SchemesTooLarge {
        /// The profile.
        profile: String,
        /// GPUs of the cluster.
        gpus: u32,
        /// The scheme that takes least memory.
        least: Scheme,
        /// Bytes that it takes before the first token.
        needed: u64,
        /// Bytes of a GPU.
        available: u64,
    },
    /// A scheme does not fit into memory.
    #[error(
        "scheme {scheme} leaves no memory for {multiple} tokens, the least micro-batch, on {gpus} GPUs: its weights, gradients, share of the optimizer state and margin need {} of {} MiB; use a wider scheme, more GPUs or more memory",
        Grouped(.needed.div_ceil(MIB)),
        Grouped(.available / MIB)
    )]
    SchemeTooLarge {
        /// The scheme.
        scheme: Scheme,
        /// GPUs of the cluster.
        gpus: u32,
        /// Bytes that are taken before the first token.
        needed: u64,
        /// Tokens that a cap is a multiple of.
        multiple: u64,
        /// Bytes of a GPU.
        available: u64,
    },
    /// A slowdown of a rank that does not exist, or that is no factor.
    #[error(
        "rank {rank} has slowdown {factor}: ranks are 0 to {}, factors finite and above 0; mend the one that is not", .gpus - 1
    )]
    Slowdown {
        /// The rank given.
        rank: u32,
        /// The factor given.
        factor: String,
        /// Ranks of the cluster.
        gpus: u32,
    },
    /// A cost of a switch that is no time.
    #[error("switch_ms is {value}: the limits are 0 and any finite number; give what a change of strategy takes")]
    SwitchCost {
        /// The cost given.
        value: String,
    },
    /// A cost of the head that is none.
    #[error(
        "head_layers is {value}: the limits are 0 and any finite number; give how many layers the head costs as much as"
    )]
    HeadLayers {
        /// The cost given.
        value: String,
    },
    /// Layers of stages that are no split of the model's.
    #[error(
        "stage_layers[{index}] = {value}: {why}; give the layers of each stage, one list for each number of stages"
    )]
    LayerSplit {
        /// Place of the list.
        index: usize,
        /// The list.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// More stages than layers.
    #[error(
        "scheme {scheme} has {stages} pipeline stages, the model has {layers} layers: the limit is one layer a stage; use a smaller pp"
    )]
    TooManyStages {
        /// The scheme.
        scheme: Scheme,
        /// Its stages.
        stages: u16,
        /// Layers of the model.
        layers: u32,
    },
}

impl Error {
    /// The same error, with the place of its batch among several.
    pub(crate) fn in_batch(self, batch: usize) -> Error {
        Error::InBatch { batch, error: Box::new(self) }
    }
}

/// A result of the core.
pub type Result<T> = std::result::Result<T, Error>;
