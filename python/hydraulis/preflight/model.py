"""The model: its parameters, which of them are trained, and the files that they come from."""

from pathlib import Path

from hydraulis.config.run import RunConfig
from hydraulis.model.parameters import EMBEDDING_WEIGHT
from hydraulis.preflight.finding import Status, warned
from hydraulis.runtime.hugging_face.positions import positions_note
from hydraulis.runtime.hugging_face.weights import HuggingFaceWeights
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.state.weight_decay import no_decay_note


def look_at_model(config: RunConfig, *, goes_on: bool) -> tuple[Status, str]:
    """Count parameters, and compare the files that they are read from.

    Args:
        config: of the run.
        goes_on: whether the parameters are those of a checkpoint: then no other files are opened.

    Raises:
        InvalidInputError: what is frozen is no parameter (code `config_value`), or the files are not
            those of the model (`weights_invalid`).
    """
    trained, frozen = ModelParameters.parted(config.model, config.train.frozen)
    still = 0 if frozen is None else frozen.num_elements
    text = f"{trained.num_elements + still:,} parameters"
    if frozen is not None:
        text += f", {still:,} of them frozen"
        if config.model.tie_word_embeddings and EMBEDDING_WEIGHT in frozen.names:
            text += " (the embedding is also the head, by model.tie_word_embeddings: so is the head)"
    text = f"{text}; {_where_from(config, goes_on=goes_on)}"
    return warned(text, positions_note(config), no_decay_note(config))


def _where_from(config: RunConfig, *, goes_on: bool) -> str:
    """Say where the parameters come from; files must be those of the model."""
    if goes_on:
        return "those of the checkpoint that the run goes on with"
    folder = config.checkpoint.weights
    if not folder:
        return f"drawn by train.seed = {config.train.seed}"
    with HuggingFaceWeights(Path(folder), ModelParameters.of(config.model)) as weights:
        weights.check()
    return f"the files of {folder} have them all"
