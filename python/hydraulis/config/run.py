"""The configuration of a training run: one TOML file, one table per section, one dataclass per table.

What a section accepts is what its dataclass declares; unknown keys are errors. Values are checked when a
section is constructed, so a configuration that exists is a valid one. Knobs of the planner's algorithms are
not here: the core owns those.
"""

import dataclasses
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from hydraulis.config.check import above, at_least, below, not_empty
from hydraulis.config.checkpointing import CheckpointingKind
from hydraulis.config.context import ContextKind
from hydraulis.config.hugging_face import from_hugging_face
from hydraulis.config.model import ModelConfig
from hydraulis.config.override import apply_override
from hydraulis.config.table import from_table
from hydraulis.errors import InvalidInputError

# Tokens are bytes, so the embedding must have a row for each.
NUM_BYTE_TOKENS = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the sequences come from, and how many of them make a global batch.

    Attributes:
        source: `stdlib` is the functions and methods of the interpreter's standard library.
        max_tokens: the longest sequence; longer documents are cut, and the cuts are counted.
        tokens_per_batch: a global batch takes whole documents until it holds this many tokens.
    """

    source: Literal["stdlib"] = "stdlib"
    max_tokens: int = 8192
    tokens_per_batch: int

    def __post_init__(self) -> None:
        # The last token of a document predicts nothing, so a single one would train nothing.
        at_least("data.max_tokens", self.max_tokens, 2)
        at_least("data.tokens_per_batch", self.tokens_per_batch, 1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The length of the run and how it computes.

    Attributes:
        steps: the number of iterations.
        seed: fixes the initial weights and the order of the documents.
        dtype: the type of parameters and activations; gradients are added up, and master parameters kept, in
            at least float32.
        checkpointing: what each decoder layer computes again in backward instead of keeping it: nothing
            (`none`), all but attention and matrix products (`selective`), or all (`full`).
        timeout_s: how long a process group waits before it gives up, in seconds.
        trace_step: the iteration whose timeline is exported, counted from 0, or the last of a shorter run;
            absent for none.
    """

    steps: int
    seed: int = 0
    dtype: Literal["bfloat16", "float32", "float64"] = "float32"
    checkpointing: CheckpointingKind = "none"
    timeout_s: float = 600.0
    trace_step: int | None = None

    def __post_init__(self) -> None:
        at_least("train.steps", self.steps, 1)
        at_least("train.seed", self.seed, 0)
        above("train.timeout_s", self.timeout_s, 0)
        if self.trace_step is not None:
            at_least("train.trace_step", self.trace_step, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its warm-up.

    Attributes:
        learning_rate: the rate after the warm-up.
        warmup_steps: the number of iterations over which the rate grows linearly from 0.
        betas: the decay rates of the two moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled from the gradient.
    """

    learning_rate: float = 3e-4
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        above("optimizer.learning_rate", self.learning_rate, 0)
        at_least("optimizer.warmup_steps", self.warmup_steps, 0)
        for i, beta in enumerate(self.betas):
            at_least(f"optimizer.betas[{i}]", beta, 0)
            below(f"optimizer.betas[{i}]", beta, 1)
        above("optimizer.eps", self.eps, 0)
        at_least("optimizer.weight_decay", self.weight_decay, 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """What the planner may choose from and what it must respect.

    Attributes:
        strategies: the candidate strategies, such as `1x<tp2>+2x<1>`; the core reads and checks them.
        context: how context ranks attend to each other's tokens, for the profile that is measured: `ulysses`
            exchanges tokens for heads, `ring` passes keys and values round.
        profile: the path of a saved cost profile, which brings its own memory and kind of context
            parallelism, and must have been measured under `train.checkpointing`; empty to measure one at the
            start.
        profile_seconds: after how long that measurement begins no new pass; it always makes one.
        memory_mib: the memory of one rank for which a profile is measured.
    """

    strategies: tuple[str, ...]
    context: ContextKind = "ulysses"
    profile: str = ""
    profile_seconds: float = 20.0
    memory_mib: int

    def __post_init__(self) -> None:
        not_empty("planner.strategies", self.strategies)
        for i, strategy in enumerate(self.strategies):
            not_empty(f"planner.strategies[{i}]", strategy)
        above("planner.profile_seconds", self.profile_seconds, 0)
        at_least("planner.memory_mib", self.memory_mib, 1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """What a run leaves behind.

    Attributes:
        directory: the folder for metrics, plans, a trace, the profile, the parameters and the effective
            configuration; where it exists, a number is added to its name.
    """

    directory: str

    def __post_init__(self) -> None:
        not_empty("output.directory", self.directory)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole training run, one attribute per section of its file."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    planner: PlannerConfig
    output: OutputConfig

    def __post_init__(self) -> None:
        at_least("model.vocab_size", self.model.vocab_size, NUM_BYTE_TOKENS)


def load(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run configuration; of two overrides of the same key the later one counts.

    In the section `model` the key `hf_config` names a `config.json` of Hugging Face, whose values the other
    keys of the section override.

    Args:
        path: the TOML file.
        overrides: each `section.key=value` with a TOML value, for example `train.dtype="float64"`.

    Returns:
        The validated configuration.

    Raises:
        InvalidInputError: the file cannot be read (code `config_file`), it or an override is not TOML
            (`config_syntax`), or a key or a value is refused (see `from_table`, `from_hugging_face` and the
            sections).
    """
    tables = _read(Path(path))
    for override in overrides:
        apply_override(tables, override)
    tables["model"] = _with_hugging_face(tables.get("model"))
    return from_table(RunConfig, tables, "")


def to_dict(config: RunConfig) -> dict[str, dict[str, object]]:
    """Return the effective configuration, defaults included, as plain values for JSON."""
    return dataclasses.asdict(config)


def _with_hugging_face(section: object) -> object:
    """Replace `hf_config` in the model's section by the shape that it names."""
    if not isinstance(section, dict) or "hf_config" not in section:
        return section
    path = section.pop("hf_config")
    if type(path) is not str:
        message = f"model.hf_config = {path!r} must be the path of a config.json; write it as a string"
        raise InvalidInputError(message, code="config_type")
    return dataclasses.asdict(from_hugging_face(path)) | section


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = (
            f"run configuration '{path}' must be a file that can be read ({error.strerror}); check the path"
        )
        raise InvalidInputError(message, code="config_file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"run configuration '{path}' must be TOML in UTF-8: {error}; correct it there"
        raise InvalidInputError(message, code="config_syntax") from error
