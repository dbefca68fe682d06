"""The model: its parameters, which of them are trained, and the files that they come from."""

from pathlib import Path

from hydraulis.config.run import RunConfig
from hydraulis.preflight.finding import Status
from hydraulis.runtime.hugging_face.positions import positions_note
from hydraulis.runtime.hugging_face.weights import HuggingFaceWeights
from hydraulis.runtime.parameters import ModelParameters


def look_at_model(config: RunConfig) -> tuple[Status, str]:
    """Count parameters, and compare the files that they are read from.

    Raises:
        InvalidInputError: what is frozen is no parameter (code `frozen_parameters`), or the files are not
            those of the model (`weights_file`, `weights_tensors`).
    """
    trained, frozen = ModelParameters.parted(config.model, config.train.frozen)
    text = f"{trained.num_elements:,} parameters"
    if frozen is not None:
        text += f", and {frozen.num_elements:,} that are frozen"
    folder = config.checkpoint.weights
    if not folder:
        return "ok", f"{text}; drawn by train.seed = {config.train.seed}"
    with HuggingFaceWeights(Path(folder), ModelParameters.of(config.model)) as weights:
        weights.check()
    said = positions_note(config)
    return "ok", f"{text}; the files of {folder} have them all{f'; {said}' if said else ''}"
