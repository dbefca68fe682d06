"""What the ranks of test_commands.py do."""

import os
from collections.abc import Sequence
from pathlib import Path

from train_workers import Ended, run_commands


def run_in(folders: Sequence[tuple[Path, Sequence[str]]]) -> list[Ended]:
    """Run the training command with the arguments of each, in its folder, one after another."""
    ended = []
    for folder, arguments in folders:
        os.chdir(folder)
        ended += run_commands([arguments])
    return ended
