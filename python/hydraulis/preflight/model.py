"""The check of the model: its parameters, the frozen ones, and the files of initial parameters."""

from pathlib import Path

from hydraulis.config.run import RunConfig
from hydraulis.model.parameters import EMBEDDING_WEIGHT
from hydraulis.preflight.finding import Status, with_warnings
from hydraulis.preflight.notes import no_decay_note, positions_note
from hydraulis.runtime.build import check_base
from hydraulis.runtime.hugging_face.weights import HuggingFaceWeights
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.update_rule import require_optimizer


def check_model(config: RunConfig, *, is_resumed: bool) -> tuple[Status, str]:
    """Count the parameters, and compare them with the files of initial parameters.

    Args:
        config: Configuration of the run.
        is_resumed: Whether the parameters come from a checkpoint, so that no other file is opened.

    Raises:
        InvalidInputError: A pattern of `train.frozen` matches no parameter or adapters have no base model
            (code `config_value`), or the files do not fit the model (`weights_invalid`).
        HydraulisError: The library of the optimizer is missing (code `extra_missing`).
    """
    require_optimizer(config.optimizer)
    parameters = ModelParameters.from_config(config.model, config.train.frozen)
    num_trained, num_frozen = parameters.elements
    text = f"{num_trained + num_frozen:,} parameters"
    if num_frozen:
        text += f", {num_frozen:,} of them frozen"
        if config.model.tie_word_embeddings and not parameters.is_trained(EMBEDDING_WEIGHT):
            text += " (with model.tie_word_embeddings the embedding is also the head, which is frozen too)"
    text = f"{text}; {_initial_values(config, is_resumed=is_resumed)}"
    return with_warnings(text, positions_note(config), no_decay_note(config))


def _initial_values(config: RunConfig, *, is_resumed: bool) -> str:
    """Name the source of the initial parameters; check files against the model."""
    if is_resumed:
        return "read from the resumed run's checkpoint"
    check_base(config)
    folder = config.checkpoint.weights
    if not folder:
        return f"initialised from {_seed(config)}"
    with HuggingFaceWeights(Path(folder), ModelParameters.from_config(config.model.base)) as weights:
        weights.check()
    adapters = "" if config.model.adapters is None else f"; adapters initialised from {_seed(config)}"
    return f"all present in the files of {folder}{adapters}"


def _seed(config: RunConfig) -> str:
    return f"train.seed = {config.train.seed}"
