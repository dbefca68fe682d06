"""What the ranks of test_end_to_end.py do beside running the command."""

import os
import signal
from collections.abc import Sequence

from hydraulis.runtime.checkpoint.saver import CheckpointSaver
from hydraulis.runtime.loop import Iteration
from hydraulis.runtime.recorder import Recorder
from train_workers import run_commands


class LeftError(Exception):
    """The command was left in the middle of a run, on every rank alike."""


def run_until_killed(commands: Sequence[Sequence[str]], step: int) -> None:
    """Run the commands so far; the last one until rank 0 is killed, which ends the others.

    The earlier ones are left by an exception behind the same step: what they leave on the disk is the same,
    and their ranks go on to the next one.

    Args:
        commands: the arguments of each.
        step: counted from 0, that is recorded last.
    """
    after = CheckpointSaver.after

    def leave(saver: CheckpointSaver, completed: int) -> None:
        after(saver, completed)
        if completed == step + 1:
            raise LeftError

    setattr(CheckpointSaver, "after", leave)  # noqa: B010
    for command in commands[:-1]:
        try:
            run_commands([command])
        except LeftError:
            continue
        message = f"{command} ended before step {step}"
        raise AssertionError(message)
    setattr(CheckpointSaver, "after", after)  # noqa: B010
    add = Recorder.add

    def add_and_die(recorder: Recorder, iteration: Iteration) -> None:
        add(recorder, iteration)
        if iteration.metrics.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(Recorder, "add", add_and_die)  # noqa: B010
    run_commands(commands[-1:])
