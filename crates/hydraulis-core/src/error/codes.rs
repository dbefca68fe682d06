//! The table of the core's error codes: each code's name, meaning and remedy, defined once.
//!
//! A code names a case that a program can handle in its own way; the message of an error carries the field, the value
//! and the limit. `docs/errors.md` is generated from this table and the one of the Python package.

/// A stable error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode {
    /// The code as programs compare it.
    pub name: &'static str,
    /// One paragraph: the cases that the code covers.
    pub meaning: &'static str,
    /// One paragraph: the ways to correct them.
    pub remedy: &'static str,
}

/// Every code of the core, in alphabetical order.
pub const ALL: [&ErrorCode; 19] = [
    &ARGUMENT_INVALID,
    &BATCH_EMPTY,
    &BATCH_UNPLACEABLE,
    &FIT_UNDERDETERMINED,
    &FIT_UNEXPLAINED,
    &LENGTHS_INVALID,
    &MODEL_INVALID,
    &NO_STRATEGIES,
    &PLAN_INVALID,
    &PLAN_MISMATCH,
    &PROFILE_INVALID,
    &PROFILE_UNKNOWN,
    &SCHEME_MODEL_MISMATCH,
    &SCHEME_TOO_LARGE,
    &SCHEME_UNKNOWN,
    &SEQUENCE_TOO_LONG,
    &STOPPED,
    &STRATEGY_INVALID,
    &STRATEGY_UNPLACEABLE,
];

/// An argument of a function is outside its range.
pub const ARGUMENT_INVALID: ErrorCode = ErrorCode {
    name: "argument_invalid",
    meaning: "An argument of a function or a constructor is outside its range, or contradicts another argument. Examples \
              are a count below its minimum, a cluster whose GPUs do not fill whole nodes, a link without bandwidth, and \
              an unknown name of an option. The message names the argument, its value and its limits.",
    remedy: "Pass a value within the limits. A whole number is an `int` or a NumPy integer within 64 bits; a value of \
             another Python type, where no whole number is wanted, is a `TypeError`.",
};

/// A batch has nothing to compute.
pub const BATCH_EMPTY: ErrorCode = ErrorCode {
    name: "batch_empty",
    meaning: "A batch has no sequence or no target token, or a list of batches is empty. Such a batch has no plan, and its \
              mean loss would be 0/0.",
    remedy: "Skip the batch. A sequence needs at least one token, and a batch at least one target token.",
};

/// A batch has no balance under the options.
pub const BATCH_UNPLACEABLE: ErrorCode = ErrorCode {
    name: "batch_unplaceable",
    meaning: "The sequences of a step do not fit into the number of micro-batches under the token cap, or are too few to \
              give each micro-batch one.",
    remedy: "Make the step smaller or larger, change `micro_batches` or `cap_tokens`, or pass `allow_empty=True` with a \
             collator that takes an empty list. Without the size of a step, `BalancedBatchSampler` fills the \
             micro-batches with as many sequences as fit.",
};

/// Measurements leave a coefficient open.
pub const FIT_UNDERDETERMINED: ErrorCode = ErrorCode {
    name: "fit_underdetermined",
    meaning: "The timed micro-batches are too few, have unusable times, or do not determine all three coefficients of \
              `a s^2 + b s + c`. Packs of sequences of one length are such a case, because they do not separate the \
              quadratic term from the linear one.",
    remedy: "Measure single sequences of several lengths, packs of short sequences, or several schemes of one model \
             together. A scheme needs at least 4 timed micro-batches, each with a finite time above 0 ms. A run that is \
             refined needs a scheme that ran at least 16 micro-batches.",
};

/// Measurements do not follow the cost model.
pub const FIT_UNEXPLAINED: ErrorCode = ErrorCode {
    name: "fit_unexplained",
    meaning: "The measured times differ from the best fit of `max(d, a s^2 + b s + c)` by more than the limit in the \
              message. Other work on the ranks is the usual cause.",
    remedy: "Measure again on idle ranks or with a longer time budget. `hydraulis profile` adds to its earlier \
             measurements: remove their file, which the message names, if those were noisy.",
};

/// Lengths, target counts or counts of a histogram are invalid.
pub const LENGTHS_INVALID: ErrorCode = ErrorCode {
    name: "lengths_invalid",
    meaning: "Lengths, target counts or counts of a histogram are not whole numbers, are outside their range, differ in \
              number, or changed while they were packed. Floats and booleans are refused even where they are whole.",
    remedy: "Give a one-dimensional sequence or array of an integer type. A length is at least 1 token, a target count is \
             between 0 and the length of its sequence, and each list has one entry per sequence.",
};

/// A model's shape or parameter table is invalid.
pub const MODEL_INVALID: ErrorCode = ErrorCode {
    name: "model_invalid",
    meaning: "A field of a model's shape, of its configuration or of its parameter table is outside its range, or does not \
              match another field.",
    remedy: "Correct the field that the message names.",
};

/// No strategy is left to choose from.
pub const NO_STRATEGIES: ErrorCode = ErrorCode {
    name: "no_strategies",
    meaning: "The list of strategies is empty, or no scheme of the cost profile fits the model, the ranks and their memory.",
    remedy: "Give at least one strategy, name schemes in `planner.schemes`, or raise `planner.memory_mib`.",
};

/// A plan document is malformed.
pub const PLAN_INVALID: ErrorCode = ErrorCode {
    name: "plan_invalid",
    meaning: "A plan cannot be read from JSON.",
    remedy: "Pass the unchanged text that `Plan.to_json` of the same version wrote.",
};

/// A plan does not match its use.
pub const PLAN_MISMATCH: ErrorCode = ErrorCode {
    name: "plan_mismatch",
    meaning: "A plan does not match its use: it was made for another cluster, other schemes or other sequences, or measured \
              durations do not match its schedule.",
    remedy: "Plan again with the cluster, the schemes and the lengths and target counts of the sequences that are read. \
             Files of sequences must not change while they are read. Measured durations need one value for each forward \
             and each backward.",
};

/// A cost profile is malformed or incomplete.
pub const PROFILE_INVALID: ErrorCode = ErrorCode {
    name: "profile_invalid",
    meaning: "A cost profile is not JSON, has a field that is unknown, missing, of another type or outside its range, or \
              lacks the `model` that the request needs.",
    remedy: "Correct the field that the message names (see [cost-profile.md](cost-profile.md)), or measure the profile \
             again. A negative coefficient usually comes from too few measured lengths. Without `model` a profile supports \
             neither links nor learnt efficiencies.",
};

/// A profile or a device has an unknown name.
pub const PROFILE_UNKNOWN: ErrorCode = ErrorCode {
    name: "profile_unknown",
    meaning: "A name is neither a preset cost profile nor a file, names no device with a data sheet, or is an analytic \
              profile without its model or device.",
    remedy: "Use a name of the list in the message, the path of a profile, or `analytic:MODEL:DEVICE[,KIND...]`, where MODEL \
             is a published model, a preset or a `config.json` of Hugging Face and KIND is `none`, `selective` or `full`. For another device, \
             measure a profile with `hydraulis profile`.",
};

/// The model cannot be divided by a scheme.
pub const SCHEME_MODEL_MISMATCH: ErrorCode = ErrorCode {
    name: "scheme_model_mismatch",
    meaning: "The model cannot be divided by the degrees of a scheme: a tensor degree does not divide its heads, a Ulysses \
              context degree exceeds the heads of a rank, there are more pipeline stages than layers, or `stage_layers` is \
              no split of the model's layers.",
    remedy: "Choose degrees that the message allows. Ring attention (`planner.context = \"ring\"`) has no limit from heads. \
             Without `train.stage_layers`, layers are assigned to stages by their cost.",
};

/// A scheme fills a GPU before the first token.
pub const SCHEME_TOO_LARGE: ErrorCode = ErrorCode {
    name: "scheme_too_large",
    meaning: "The weights, gradients and optimizer shard of a scheme leave no memory of a GPU for activations.",
    remedy: "Use a wider scheme, more GPUs (each then has a smaller optimizer shard) or more memory. For a profile that \
             training measures, `planner.memory_mib` is the memory of a GPU.",
};

/// A scheme is not in the profile.
pub const SCHEME_UNKNOWN: ErrorCode = ErrorCode {
    name: "scheme_unknown",
    meaning: "A strategy uses a scheme for which the cost profile has no coefficients.",
    remedy: "Use one of the schemes in the message, or measure the scheme.",
};

/// A sequence is longer than its limit.
pub const SEQUENCE_TOO_LONG: ErrorCode = ErrorCode {
    name: "sequence_too_long",
    meaning: "A sequence is longer than the strategies, the token cap, a context window or `data.max_tokens` admit. The \
              message gives the sequence, its tokens and the limit.",
    remedy: "Truncate, split or leave out the sequence (`data.too_long`), use a wider scheme, or give the ranks more memory. \
             `Planner.longest_admitted` is the limit of a planner; the in-flight memory rule admits longer sequences in \
             pipelines.",
};

/// The caller cancelled the computation.
pub const STOPPED: ErrorCode = ErrorCode {
    name: "stopped",
    meaning: "The caller cancelled a computation before its end. The input is valid. In Python, the exception that the \
              progress callback raised arrives instead.",
    remedy: "Repeat the call if its result is still needed.",
};

/// Text is no scheme or strategy.
pub const STRATEGY_INVALID: ErrorCode = ErrorCode {
    name: "strategy_invalid",
    meaning: "A text does not have the form of a scheme or a strategy.",
    remedy: "Write a scheme such as `<1>`, `<tp4>` or `<tp4,pp2>` and a strategy such as `1x<tp16>+12x<tp4,pp2>`. Separate \
             the strategies of a list by `;`, and quote the text in a shell.",
};

/// A strategy does not fit onto the cluster.
pub const STRATEGY_UNPLACEABLE: ErrorCode = ErrorCode {
    name: "strategy_unplaceable",
    meaning: "A strategy needs more GPUs than the cluster has, or one of its stages has no aligned group of free ranks \
              inside a node or on whole nodes. If every scheme of the profile needs more GPUs than the cluster has, the \
              error is an `InfeasibleError`.",
    remedy: "Remove replicas, use smaller schemes or tensor and context degrees whose product divides the node, or use more \
             GPUs. A strategy may leave GPUs idle.",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_and_unique() {
        assert!(ALL.is_sorted_by(|left, right| left.name < right.name));
    }
}
