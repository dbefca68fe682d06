"""The files of a finished run, and the commands that read them."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from hydraulis.runtime.records.recorder import RunSummary
from hydraulis.runtime.records.replaced_files import replaced_step
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
    PROFILER,
    REPORT,
    RUN_CONFIG,
    SAMPLES,
    TENSORBOARD,
    TIMES,
    TRACE,
    WANDB,
    WANDB_ID,
)

_MEANINGS = {
    METRICS: "metrics of each step",
    PLANS: "plan of each step",
    EVALUATIONS: "losses on held-out data",
    SAMPLES: "texts that the model continued",
    TIMES: "times of micro-batches",
    TRACE: "trace (open in Perfetto)",
    PROFILE: "cost profile",
    PROFILER: "operations of train.profile_steps (open in Perfetto)",
    RUN_CONFIG: "effective configuration",
    CALIBRATIONS: "corrections of the schemes' times",
    CORPUS: "corpus statistics",
    CARRIED: "files of the initial model",
    ANALYSIS: "lengths and batches of the data",
    REPORT: "report of the run",
    TENSORBOARD: "for tensorboard --logdir",
    WANDB: "run of Weights & Biases",
    WANDB_ID: "id of that run",
    CHECKPOINTS: "model, optimizer and position in the data, to resume from",
    LOCK: "lock of the training that writes here",
}


def describe_files(summary: RunSummary) -> Iterator[str]:
    """Yield a line for each file of the run, and the commands that read them."""
    run = shlex.quote(str(summary.directory))
    yield f"files of {run}:"
    names = [path.name for path in summary.files]
    width = max(map(len, names), default=0)
    for name in names:
        yield f"  {name:{width}}  {_meaning(name)}"
    command = own_command()
    yield f"to make a page with figures: {command} report {run}"
    if CHECKPOINTS in names:
        yield f"to export a Hugging Face model: {command} export {run} --output FOLDER"


def own_command() -> str:
    """Return the words that start `hydraulis` in this shell: its name, or its path where PATH lacks it."""
    script = Path(sys.executable).with_name("hydraulis")
    found = shutil.which("hydraulis")
    if not script.exists():
        return "hydraulis" if found else f"{shlex.quote(sys.executable)} -m hydraulis"
    if found and Path(found).resolve() == script.resolve():
        return "hydraulis"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def _meaning(name: str) -> str:
    for replacing in (PROFILE, RUN_CONFIG):
        step = replaced_step(replacing, name)
        if step is not None:
            return f"{_MEANINGS[replacing]} until step {step}"
    return _MEANINGS.get(name, "file")
