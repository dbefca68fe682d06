"""What a run leaves: its files, and what to do with them."""

import shlex
from collections.abc import Iterator

from hydraulis.profile.profile_files import last_step_of
from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.runtime.records.run_directory import (
    ANALYSIS,
    CALIBRATIONS,
    CARRIED,
    CHECKPOINTS,
    CORPUS,
    EVALUATIONS,
    LOCK,
    METRICS,
    PLANS,
    PROFILE,
    REPORT,
    RUN_CONFIG,
    TENSORBOARD,
    TIMES,
    TRACE,
    WANDB,
    WANDB_ID,
)

_MEANINGS = {
    METRICS: "what each step took and gave",
    PLANS: "plan of each step",
    EVALUATIONS: "losses on what is held out",
    TIMES: "times of micro-batches",
    TRACE: "trace (open in Perfetto)",
    PROFILE: "cost profile",
    RUN_CONFIG: "configuration, as it was in effect",
    CALIBRATIONS: "what was learnt of the schemes' times",
    CORPUS: "corpus statistics",
    CARRIED: "what came with the model",
    ANALYSIS: "lengths and batches of the data",
    REPORT: "report of the run",
    TENSORBOARD: "for tensorboard --logdir",
    WANDB: "run of Weights & Biases",
    WANDB_ID: "its name there",
    CHECKPOINTS: "model, optimizer and place in the data, to go on from",
    LOCK: "held by the training that writes here",
}


def what_is_left(summary: RunSummary) -> Iterator[str]:
    """Name each file of a run with what it is, and the commands that make something of them."""
    run = shlex.quote(str(summary.directory))
    yield f"{run} holds"
    names = [path.name for path in summary.files]
    width = max(map(len, names), default=0)
    for name in names:
        yield f"  {name:{width}}  {_meaning(name)}"
    yield f"as one page with figures: hydraulis report {run}"
    if CHECKPOINTS in names:
        yield f"as a model that transformers loads: hydraulis export {run} --output FOLDER"


def _meaning(name: str) -> str:
    step = last_step_of(name)
    return _MEANINGS.get(name, "file") if step is None else f"cost profile until step {step}"
