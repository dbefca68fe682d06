"""What the ranks of test_commands.py do."""

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from hydraulis.cli.main import main
from hydraulis.cli.ranks import report as rank_report
from hydraulis.runtime.ranks import distributed
from train.train_workers import Ended, join_existing_group, run_commands


def run_in(folders: Sequence[tuple[Path, Sequence[str]]]) -> list[Ended]:
    """Run each command in its folder, one after another, as torchrun would start it on this rank.

    Args:
        folders: Pairs of a folder and a command: `hydraulis.train` or `hydraulis`, and its arguments.
    """
    os.environ["RANK"] = str(dist.get_rank())
    setattr(distributed, "joined", join_existing_group)  # noqa: B010
    setattr(rank_report, "PATIENCE_S", 0.0)  # noqa: B010
    return [_run(folder, words) for folder, words in folders]


def _run(folder: Path, words: Sequence[str]) -> Ended:
    os.chdir(folder)
    if words[0] == "hydraulis.train":
        return run_commands([words[1:]])[0]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words[1:])
    return Ended(code, out.getvalue(), err.getvalue())
