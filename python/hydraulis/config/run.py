"""The configuration of a training run: one TOML file, one table per section, one dataclass per table.

Each section stands in the file of its name. What a section accepts is what its dataclass declares; unknown
keys are errors. Values are checked when a section is constructed, so a configuration that exists is a valid
one. Knobs of the planner's algorithms are not here: the core owns those.
"""

import dataclasses
import tomllib
from collections.abc import Sequence
from pathlib import Path

from hydraulis.config.check import above, at_least
from hydraulis.config.checkpoint import CheckpointConfig
from hydraulis.config.data import DataConfig
from hydraulis.config.hugging_face import from_hugging_face
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.output import OutputConfig
from hydraulis.config.override import apply_override
from hydraulis.config.planner import PlannerConfig
from hydraulis.config.table import from_table
from hydraulis.config.train import TrainConfig
from hydraulis.errors import InvalidInputError

# Without files tokens are bytes, so the embedding must have a row for each.
NUM_BYTE_TOKENS = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole training run, one attribute per section of its file."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    planner: PlannerConfig
    checkpoint: CheckpointConfig
    output: OutputConfig

    def __post_init__(self) -> None:
        # Files may hold tokens of any tokenizer: those are compared with the model when they are read.
        if not self.data.sources:
            at_least("model.vocab_size", self.model.vocab_size, NUM_BYTE_TOKENS)
        if self.train.evaluate_every is not None:
            # Nothing else says what to evaluate on.
            above("data.held_out", self.data.held_out, 0)


def load(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run configuration; of two overrides of the same key the later one counts.

    In the section `model` the key `hf_config` names a `config.json` of Hugging Face, whose values the other
    keys of the section override; `path` names a whole model folder, from which the parameters come too, as
    `checkpoint.weights` says then.

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
    _take_model_folder(tables)
    tables["model"] = _with_hugging_face(tables.get("model"))
    return from_table(RunConfig, tables, "")


def to_dict(config: RunConfig) -> dict[str, dict[str, object]]:
    """Return the effective configuration, defaults included, as plain values for JSON."""
    return dataclasses.asdict(config)


def _take_model_folder(tables: dict[str, object]) -> None:
    """Replace `path` in the model's section by what it stands for: the shape, and where parameters are."""
    section, checkpoint = tables.get("model"), tables.setdefault("checkpoint", {})
    if not isinstance(section, dict) or not isinstance(checkpoint, dict) or "path" not in section:
        return
    path = section.pop("path")
    if type(path) is not str:
        message = f"model.path = {path!r} must be the folder of a model; write it as a string"
        raise InvalidInputError(message, code="config_type")
    for name, table in (("hf_config", section), ("weights", checkpoint)):
        if name in table:
            message = (
                f"model.path = {path!r} and {name} = {table[name]!r} both say what the model is; "
                "leave one of them out"
            )
            raise InvalidInputError(message, code="config_value")
    section["hf_config"] = str(Path(path) / "config.json")
    checkpoint["weights"] = path


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
