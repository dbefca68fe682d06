"""Functions that test_end_to_end.py runs on ranks."""

import os
import signal
from collections.abc import Sequence

from hydraulis.runtime.iteration import Iteration
from hydraulis.runtime.records.recorder import Recorder
from train.train_workers import run_commands


def run_until_killed(command: Sequence[str], step: int) -> None:
    """Run the command, as if on nodes of two ranks, until rank 0 is killed, which ends the others.

    The other processes get no signal.

    Args:
        command: Arguments of the command.
        step: Last step that is recorded.
    """
    add = Recorder.add

    def add_and_die(recorder: Recorder, iteration: Iteration) -> None:
        add(recorder, iteration)
        if iteration.metrics.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(Recorder, "add", add_and_die)  # noqa: B010
    run_commands([command], ranks_per_node=2)
