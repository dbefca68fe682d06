"""The command: what it is asked for, and how it ends.

torch, which takes seconds on each of many ranks, is loaded once the configuration is taken.
"""

import argparse
from collections.abc import Sequence
from datetime import timedelta

from hydraulis.cli.options import add_json, add_resume, add_run_config, with_resume
from hydraulis.cli.parser import Parser
from hydraulis.cli.ranks.rank import report_as_rank, report_before_meeting
from hydraulis.cli.terminal.output import lasting_output
from hydraulis.config.run import RunConfig, load
from hydraulis.errors import HydraulisError
from hydraulis.extras import require_torch
from hydraulis.runtime.ranks.torchrun import require_torchrun

_EXAMPLES = """\
examples:
  torchrun --standalone --nproc-per-node 4 -m hydraulis.train examples/demo.toml
  torchrun --standalone --nproc-per-node 8 -m hydraulis.train run.toml --preset node --set train.epochs=2
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
      -m hydraulis.train run.toml --preset nodes --resume latest

`hydraulis config RUN.toml` prints the effective configuration; `hydraulis check RUN.toml --gpus N` looks at
all that can be known before a rank starts.

exit codes:
  0    done
  2    the configuration or the data is refused
  3    another rank ended: the newest checkpoint is named
  130  interrupted, terminated or hung up on, after the step at hand: a checkpoint is there
torchrun ends with 1 if a rank ends with any but 0.
"""
_PROGRAM = "hydraulis.train"


def main(arguments: Sequence[str] | None = None) -> int:
    """Be one rank of a training run.

    Returns:
        0; 2 when the configuration or the data is refused; 3 when another rank ended; 130 when the run was
        interrupted, after the step at hand.
    """
    try:
        parsed = make_parser().parse_args(arguments)
        config = load(parsed.config, with_resume(parsed), parsed.preset)
        require_torchrun()
        require_torch("training")
    except HydraulisError as error:
        return report_before_meeting(_PROGRAM, error)
    with lasting_output():
        return _as_rank(config, as_json=parsed.json)


def _as_rank(config: RunConfig, *, as_json: bool) -> int:
    from hydraulis.runtime.ranks.device import choose_device
    from hydraulis.runtime.ranks.distributed import joined
    from hydraulis.runtime.ranks.stop import StopRequest
    from hydraulis.train.run import train

    try:
        device = choose_device(config.train.device)
    except HydraulisError as error:
        return report_before_meeting(_PROGRAM, error)
    timeout, deterministic = timedelta(seconds=config.train.timeout_s), config.train.deterministic
    with StopRequest() as stop:
        try:
            with joined(timeout, device, deterministic=deterministic) as rank:
                return train(config, rank, stop, as_json=as_json)
        except HydraulisError as error:
            # Every rank that is left raises the same error: one of them reports it, which torchrun, asking
            # all to end, must not keep it from.
            return report_as_rank(_PROGRAM, error)


def make_parser() -> argparse.ArgumentParser:
    """Declare the command's options."""
    parser = Parser(
        # As its --help can be had without any rank.
        prog=f"python -m {_PROGRAM}",
        description="Train, planning every iteration anew.",
        epilog=_EXAMPLES,
    )
    add_run_config(parser)
    add_resume(parser)
    add_json(parser, "the summary")
    return parser
