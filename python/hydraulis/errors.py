"""The exceptions of the package, and the table of its error codes.

A code names a case that a program can handle in its own way; the message carries the field, the value and
the limit. The core defines the codes that it raises (`hydraulis._core.error_codes`), and this module defines
the others. `make errors-page` generates `docs/errors.md` from both tables.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Self


class HydraulisError(Exception):
    """A refused input or a failed run. The code is stable; the message may change.

    Attributes:
        code: Stable name of the case, a heading of `docs/errors.md`.
        is_everywhere: Whether every rank of a run raises the error at the same place, so that the ranks can
            still communicate; false where this is not certain.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(_readable(message))
        self.code = code
        self.is_everywhere = False

    def __reduce__(self) -> tuple[Callable[[str], Self], tuple[str]]:
        """Keep the code when the error crosses a process boundary."""
        return partial(type(self), code=self.code), (str(self),)


# Characters of a message at its start and, with the remedy, at its end; longer ones repeat their input.
_START, _END, _MARK = 6_000, 2_000, 60


def _readable(message: str) -> str:
    """Cut a message that repeats a long input, and escape characters that cannot be written."""
    # A message that was cut before, in another process, stays as it is.
    if len(message) > _START + _END + _MARK:
        left_out = len(message) - _START - _END
        message = f"{message[:_START]} [... {left_out:,} characters ...] {message[-_END:]}"
    return message.encode(errors="backslashreplace").decode()


class InvalidInputError(HydraulisError, ValueError):
    """A field, a sequence or a file is invalid: correct it."""


class InfeasibleError(HydraulisError, ValueError):
    """The input is valid, and no plan exists for it: change the cluster, the memory or the batch."""


class ErrorCode(NamedTuple):
    """One paragraph about the cases of a code, and one about their remedy.

    Attributes:
        meaning: The cases that the code covers.
        remedy: The ways to correct them.
    """

    meaning: str
    remedy: str


LOST_RANK: Final = "lost_rank"
"""Code of the error that remaining ranks raise after another rank was lost."""
# The codes that Python raises and the core does not, in alphabetical order.
CODES: Final[Mapping[str, ErrorCode]] = {
    "attention_unsupported": ErrorCode(
        "The attention kernel of `train.attention` does not compute heads of this dimension or type on this "
        "device. The message gives the kernel's limits.",
        'Set `train.attention = "auto"`, which selects a kernel for any heads, or change the head dimension,'
        " the type or the device.",
    ),
    "attention_wrong": ErrorCode(
        "The attention kernel that the run chose gives other outputs or gradients than plain attention on a "
        "small micro-batch with heads of the model. Every CUDA rank compares them before the run.",
        "Install another version of the kernel's package, or name another kernel in `train.attention`. "
        '`train.attention = "torch-flash"` needs no package, and `"plain"` is right everywhere but slow.',
    ),
    "chat_template_invalid": ErrorCode(
        "A chat template cannot be read or compiled, refuses the messages of a record, or does not mark the "
        "assistant's tokens.",
        "Correct the record or the template that the message names. Content that is `null` needs a template "
        "that accepts it. Mark the assistant's text by `{% generation %}` and `{% endgeneration %}`. If the "
        "tokenizer has no template, set `data.chat_template` to a file or to `chatml`, which writes texts "
        "alone.",
    ),
    "checkpoint_damaged": ErrorCode(
        "A file of a checkpoint is missing, or has another size or content than the manifest says, or the "
        "manifest is malformed or was changed.",
        "Copy the checkpoint again, or remove its folder; the message names the next older checkpoint.",
    ),
    "checkpoint_mismatch": ErrorCode(
        "A resumed run differs from its checkpoint in a way that would change the training: other data, "
        "another order of batches, another model, another type of the master parameters, or a frozen "
        "parameter that is trained now. Files of data are compared by size before they are indexed and by "
        "content afterwards.",
        "Set back the values that the message names, or start a new run. To train on from the checkpoint's "
        "parameters, export them and set `model.path`. A run that reached the end of its data cannot resume "
        "with a larger `train.epochs` if its last batch was smaller. If the batches alone differ, install "
        "the NumPy version of the first run, because NumPy versions can draw other permutations.",
    ),
    "checkpoint_missing": ErrorCode(
        "The folder to resume or export has no complete checkpoint, or another process removed the "
        "checkpoint, or a copy of `checkpoint.memory_folder`, before it was read. A checkpoint without "
        "`manifest.json`, which is written last, is incomplete.",
        "Name the folder of a run that has a complete checkpoint, or one of the checkpoints in the message. "
        "A relative path starts at the working directory. If a copy was removed, start again.",
    ),
    "config_missing_key": ErrorCode(
        "A run configuration lacks a key without a default.",
        "Set the key in its section, by `--set section.key=value` or by a preset. `model.path` or "
        "`model.hf_config` sets all keys of `[model]`.",
    ),
    "config_syntax": ErrorCode(
        "A run configuration or an override is not TOML, or a model's `config.json` is not JSON.",
        "Correct the line that the message names. Write an override as `section.key=value`: a string needs "
        "no quotes there, and a list of strings no brackets (`--set 'planner.strategies=2x<1>;1x<tp2>'`).",
    ),
    "config_unknown_key": ErrorCode(
        "A run configuration has an unknown key or section. The message gives the nearest name and all valid"
        " ones.",
        "Correct the spelling.",
    ),
    "config_value": ErrorCode(
        "A value of a run configuration has the wrong type, is outside its range, or contradicts another "
        "value. All unknown keys, missing keys and wrong types are reported in one message, joined by `; "
        "also: `, with the code of the first.",
        "Set the key to a value of the type and range in the message. An integer is accepted for a float; no"
        " other type is converted.",
    ),
    "corpus_empty": ErrorCode(
        "A source has no sequence with a target token: every record is empty, has a single token, or has no "
        "token that counts in the loss.",
        "Check the source's files and fields; for conversations, check that a message is the assistant's. "
        "Some Python distributions lack the sources of the standard library: use another interpreter or "
        "other files.",
    ),
    "data_file_invalid": ErrorCode(
        "A file of sequences or lengths has an unknown ending, or its content does not match its format: "
        "text, JSON Lines, Parquet, Arrow, NumPy, or Megatron's indexed format, version 1. Offsets that do "
        "not cover the tokens are such a case.",
        "Correct the line, field or element that the message names, or convert the file. A file of lengths "
        "has one whole number of at least 1 per line, array element or JSON field.",
    ),
    "device_missing": ErrorCode(
        "The run needs CUDA devices, and torch finds none, or a node has fewer devices than ranks, or a "
        "device has no products in float8 (`train.float8`) or does not reach another one of its node "
        "(`train.symmetric_memory`), or ranks with `train.compile` compute on the CPU.",
        "Install a torch build for CUDA and its driver, check `CUDA_VISIBLE_DEVICES`, start at most one rank"
        ' per device, set `train.device = "cpu"`, or leave out the option that needs devices.',
    ),
    "extra_missing": ErrorCode(
        "A library of an optional extra is not installed or cannot be imported, or Triton or its C compiler "
        "is missing for `train.compile`.",
        "Install what the message names, or leave out the option that needs it.",
    ),
    "file_unreadable": ErrorCode(
        "A file, a folder or a pattern of names matches nothing, or the file cannot be opened or decoded as "
        "UTF-8 text. The system refuses to read a file of a checkpoint or an index, which may be sound.",
        "Check the path and its permissions: a relative path starts at the working directory. Decompress "
        "compressed files and save text as UTF-8. Models are read from local folders; nothing is downloaded.",
    ),
    "file_unwritable": ErrorCode(
        "A file or folder of a result, a run or an export cannot be written, already exists where a new one "
        "is needed, or its disk has too little room.",
        "Change the permissions, make room, name another file or folder (`output.directory` for a run), or "
        "lower `checkpoint.keep`.",
    ),
    "folder_busy": ErrorCode(
        "Another process is training in the run's folder, or is building the same index and has written "
        "nothing for ten minutes.",
        "Wait for that process or end it, or use another folder. The lock ends with its process. A shared "
        "disk may keep the lock of a lost node for minutes: ranks that are started again wait two minutes for"
        " it. If the host in the message is gone, remove the file `lock` that the message names.",
    ),
    "folder_not_shared": ErrorCode(
        "A rank does not see the files that rank 0 writes into the run's folder. Every rank writes its part "
        "of a checkpoint there.",
        "Set `output.directory` to a folder on a file system that all nodes mount.",
    ),
    "gradient_not_finite": ErrorCode(
        "The norm of a step's gradient is infinite or not a number. The step updated no parameter.",
        "Lower `optimizer.learning_rate` or lengthen the warm-up, and resume from the last checkpoint, "
        "or from an earlier one if this was the first step after a resume. If the message names one rank of "
        "many, look for a defect of its device first.",
    ),
    "index_damaged": ErrorCode(
        "A file of an index cannot be written or read, is incomplete, differs between nodes, or does not "
        "match its digest: a disk or a person changed it.",
        "Make room, put `data.index_directory` on a disk that all nodes share, or remove the damaged folder,"
        " which is then built again.",
    ),
    "index_process_failed": ErrorCode(
        "A process that tokenizes ended before its work was complete. Lack of memory is the usual cause.",
        "Run the same command again: complete parts are kept. If memory was short, lower "
        "`data.index_processes`.",
    ),
    "loss_not_finite": ErrorCode(
        "The loss of a step is infinite or not a number. Before the first update, the initial parameters are"
        " the cause.",
        "Lower `optimizer.learning_rate` or lengthen `optimizer.warmup_steps`, and resume from the last "
        "checkpoint. If the message says that no update was made, check the files of `model.path` and the "
        "range of `train.dtype`.",
    ),
    LOST_RANK: ErrorCode(
        "Another rank ended, failed alone, never joined, did not answer within `train.timeout_s`, gave no "
        "sign of life for `train.silence_s`, or made a step or a checkpoint take longer than its limit. One "
        "remaining rank reports the cause, the lost ranks and their hosts, and all remaining ranks end with "
        "exit code 3.",
        "Read the reports of the lost ranks and of torchrun on their hosts: they have the cause. Then resume "
        "from the checkpoint that the message names; with `--max-restarts` the launcher does it. If all "
        "ranks answer, one was slow (raise the limit that the message names) or a connection failed.",
    ),
    "measurements_invalid": ErrorCode(
        "A file of measurements has another format, a malformed line, or measurements of other conditions, "
        "such as another number of ranks.",
        "Remove the file or the line that the message names, or write the profile to another file.",
    ),
    "micro_batch_invalid": ErrorCode(
        "The tensors of a micro-batch do not match each other, their segments or the ranks of their group: a"
        " sequence is empty, a mask has another length, a last dimension is not contiguous, or the tokens "
        "are no multiple of the group's ranks.",
        "Leave out empty sequences, pass the `PackedSequences` of the same micro-batch, call `contiguous()`,"
        " or pad the micro-batch to the multiple in the message; padding never counts in the loss.",
    ),
    "model_unsupported": ErrorCode(
        "A model's `config.json` describes a model that the decoder does not compute, or no family of "
        "transformers has the trained model's options together. Or a model of transformers lets packed "
        "sequences change each other's logits.",
        "Use a Llama, Mistral, Qwen2 or Qwen3 (dense) model. A sliding window is supported if no sequence is"
        " longer. Give a model that mixes packed sequences another `attn_implementation`, or padded batches. "
        "For an export, the shards of a checkpoint are safetensors files (see "
        "[checkpoints.md](checkpoints.md)).",
    ),
    "not_torchrun": ErrorCode(
        "A rank of training or measuring was started without the environment variables of torchrun.",
        "Start it as the message says. `hydraulis train --ranks N` and `hydraulis profile --ranks N` start "
        "their own ranks.",
    ),
    "option_invalid": ErrorCode(
        "A command has an unknown option, lacks a required one, cannot read the value of one, or got options"
        " that contradict each other.",
        "Correct the option that the message names; `--help` lists all options. Options cannot be "
        "abbreviated.",
    ),
    "out_of_device_memory": ErrorCode(
        "A rank's device has no memory left for a tensor of a step, of a measurement, or of the rank's "
        "parameters and optimizer state, or for connections and kernels of libraries. The message gives the "
        "planned memory, the memory of tensors, of the allocator, and of context and communicators. Or a "
        "rank's host has no memory left to pin for copies from and to the device; the message says so.",
        "In a step, lower `planner.memory_mib` by the number in the message and measure the cost profile "
        "again, so that plans leave room, or lower `train.exchange_channels` and `train.stage_channels`. "
        "Parameters and optimizer state need more ranks, or schemes with more tensor ranks or stages only. "
        "For the host, lower `planner.host_memory_mib`, leave offload out, or give the node more memory.",
    ),
    "plan_broken": ErrorCode(
        "The checker found that a plan breaks its promises. This is a defect of the planner; the input is "
        "valid.",
        "Report it with the run's folder.",
    ),
    "profile_mismatch": ErrorCode(
        "A saved cost profile was measured for another model, type, kernels (`train.compile`, "
        "`train.float8`), exchange (`train.symmetric_memory`) or split of layers than the run's, or there is "
        "none for a rank's device.",
        "Measure a profile of this run (`hydraulis profile RUN.toml`), or leave `planner.profile` empty. If "
        "`stage_layers` alone differs, set `train.stage_layers` to the profile's. Name the profiles of "
        "further devices in `planner.device_profiles`.",
    ),
    "rank_zero_failed": ErrorCode(
        "Rank 0 failed in work for all ranks with an exception that has no code.",
        "Read the traceback that rank 0 printed.",
    ),
    "ranks_differ": ErrorCode(
        "Ranks of one run have different configurations, versions of packages, files, data, plans or tokens. "
        "The message names the first difference and the ranks. Differences are found when the ranks join and "
        "in each step, before its update.",
        "Start every rank with the same command, and let all nodes see the same files and packages. If plans "
        "or tokens differ in a step although all files are the same, a node's memory or disk is damaged: "
        "resume without it.",
    ),
    "record_malformed": ErrorCode(
        "A record is not JSON, lacks a field, or has a field of another type, or an index was built without "
        "such records and they are now refused. The message lists the first ten records and counts the "
        "others for up to ten seconds.",
        "Correct the records or leave them out, name other fields (`data.sources.fields`, `--field`), or set"
        ' `data.broken_records = "skip"` (`--broken-records skip`).',
    ),
    "run_unreadable": ErrorCode(
        "A folder is not the folder of a run, its files do not match its plans, or they have the format of "
        "another release.",
        "Name the folder that `output.directory` of the run names, and read it with the release that wrote "
        "it.",
    ),
    "state_not_finite": ErrorCode(
        "A master parameter or a moment is infinite or not a number, so that the checkpoint is not written. "
        "Earlier checkpoints are kept.",
        "Resume from the last checkpoint, with a lower `optimizer.learning_rate` if the training diverged. If"
        " the message names one rank of many, look for a defect of its device first.",
    ),
    "token_out_of_range": ErrorCode(
        "A sequence has a token at or above `model.vocab_size`, or a negative one.",
        "Tokenize with the model's own tokenizer, or raise `model.vocab_size`.",
    ),
    "tokenizer_invalid": ErrorCode(
        "A tokenizer's file cannot be read or parsed, lacks a special token, or is that of another model.",
        "Give a `tokenizer.json`, the folder of one, or `bytes`. Set `data.eos_token` to a token of the "
        "vocabulary, or leave it empty for the tokenizer's own.",
    ),
    "tracker_unavailable": ErrorCode(
        "Weights & Biases refuses the run: the machine of rank 0 is not logged in, or the service cannot be "
        "reached.",
        "Run `wandb login` there, or set `WANDB_MODE=offline` and upload the run later by `wandb sync`.",
    ),
    "training_jumped": ErrorCode(
        "The loss or the gradient norm of a step is above `train.loss_jump` or `train.norm_jump` times its "
        'median over the steps before, and `train.on_jump = "stop"`. The step updated no parameter.',
        "Look at the batch of that step in `plans.jsonl`. The checkpoint of the steps before is written. "
        'Resume with a larger factor or with `train.on_jump = "skip"`, or from an earlier checkpoint with a '
        "lower learning rate: the last one has the same jump at any rate.",
    ),
    "weights_invalid": ErrorCode(
        "A file of a Hugging Face model is missing or incomplete, or a tensor is missing, unknown, or of "
        "another shape or type than `config.json` requires.",
        "Download the model again, or give the folder of one whole model, saved by `save_pretrained` as "
        "safetensors. Merge adapters and convert quantized parameters first. To train from random "
        "parameters, set `model.hf_config` instead of `model.path`.",
    ),
}
