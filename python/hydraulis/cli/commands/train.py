"""`hydraulis train`: a training run, on ranks that it starts here or that torchrun has started.

`python -m hydraulis.train` is the same command for torchrun, which starts a rank by a module's name.
"""

import argparse
import sys
from collections.abc import Sequence

from hydraulis._core import Cluster
from hydraulis.cli.options import add_json, add_ranks, add_resume, add_run_config, count, with_resume
from hydraulis.cli.parser import Parser
from hydraulis.cli.ranks.local_ranks import run_local_ranks
from hydraulis.cli.ranks.report import end_with_parent, is_rank, report_as_rank, report_before_meeting
from hydraulis.cli.ranks.training_rank import say_start, train_as_rank
from hydraulis.cli.terminal.output import discard, refusal_of_output, tolerating_lost_output
from hydraulis.config.run import RunConfig, load
from hydraulis.errors import HydraulisError, InvalidInputError
from hydraulis.extras import require_torch
from hydraulis.planner.strategies import most_ranks, named_strategies

_TORCHRUN = """\
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
      -m hydraulis.train run.toml --preset nodes --resume latest
"""
_SEE_ALSO = """\
`hydraulis config RUN.toml` prints the effective configuration; `hydraulis check RUN.toml --gpus N` checks a
run before any rank starts.
"""
_EXIT_CODES = """\
exit codes:
  0    done
  2    the configuration or the data was refused
  3    another rank was lost; the message names the newest checkpoint
  130  interrupted, terminated or hung up: the current step was completed and a checkpoint written
"""
_EXAMPLES = f"""\
examples:
  hydraulis train examples/demo.toml --ranks 4
  hydraulis train run.toml --preset node --set train.epochs=2
  hydraulis train run.toml --resume latest
{_TORCHRUN}
The ranks run on this machine; torchrun starts those of several machines. Without --ranks there are as many as
the largest strategy of planner.strategies needs, and for a search one for each CUDA device.

Ctrl-C stops after the current step, with a checkpoint; a second Ctrl-C stops at once, without one.

{_SEE_ALSO}"""
_RANK_EXAMPLES = f"""\
examples:
  torchrun --standalone --nproc-per-node 4 -m hydraulis.train examples/demo.toml
  torchrun --standalone --nproc-per-node 8 -m hydraulis.train run.toml --preset node --set train.epochs=2
{_TORCHRUN}
On one machine `hydraulis train RUN.toml --ranks N` starts its ranks itself.

{_SEE_ALSO}
{_EXIT_CODES}torchrun itself exits with 1 if any rank exits with a code other than 0.
"""
_PROGRAM = "hydraulis.train"
_DESCRIPTION = "Train, with a plan of its own for each step."
# Time that the remaining ranks have after the loss of one, to notice it and to complete a checkpoint in
# progress; torchrun gives them the same.
_GRACE_S = 30.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser("train", help="train a model", description=_DESCRIPTION, epilog=_EXAMPLES)
    add_ranks(parser)
    parser.add_argument(
        "--max-restarts",
        type=count,
        default=0,
        metavar="N",
        help="times that all ranks are started again after the loss of one (default: 0; torchrun has its own "
        "option); they continue from copies in memory (checkpoint.memory_folder) or the newest checkpoint",
    )
    _add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Start the ranks of a run and wait for them, or train as one of them.

    Returns:
        The exit code, as in the help text.

    Raises:
        InvalidInputError: The number of ranks is unknown or not for this command to choose (code
            `option_invalid`), or the configuration is refused.
        KeyboardInterrupt: The run was interrupted before its first step, or twice.
    """
    if is_rank():
        if arguments.ranks is not None or arguments.max_restarts:
            option = "--ranks" if arguments.ranks is not None else "--max-restarts"
            message = f"{option} starts ranks, and torchrun has started them already: leave it out"
            raise InvalidInputError(message, code="option_invalid")
        end_with_parent()
        return train_as_rank("hydraulis", arguments)
    # Loaded here too: a refusal is printed once and starts no rank.
    config = load(arguments.config, with_resume(arguments), arguments.preset)
    require_torch("training")
    ranks = arguments.ranks or _default_ranks(config)
    named_strategies(config.planner, Cluster(gpus=ranks, gpus_per_node=ranks))
    with tolerating_lost_output(is_result=arguments.json):
        say_start(ranks, as_json=arguments.json)
    return run_local_ranks(ranks, _for_ranks(arguments), _GRACE_S, arguments.max_restarts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as one rank of `torchrun -m hydraulis.train`.

    Args:
        arguments: Command line without the program's name; None for that of the process.

    Returns:
        The exit code (see `train_as_rank`).
    """
    try:
        parsed = make_parser().parse_args(arguments)
    except HydraulisError as error:
        return report_before_meeting(_PROGRAM, error)
    try:
        return train_as_rank(_PROGRAM, parsed)
    except OSError as error:
        refusal = refusal_of_output(error)
        discard(sys.stdout)
        return report_as_rank(_PROGRAM, refusal)


def make_parser() -> argparse.ArgumentParser:
    """Declare the options of a rank."""
    # --help works without torchrun.
    parser = Parser(prog=f"python -m {_PROGRAM}", description=_DESCRIPTION, epilog=_RANK_EXAMPLES)
    _add_options(parser)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_run_config(parser)
    add_resume(parser)
    add_json(parser, "the summary")


def _default_ranks(config: RunConfig) -> int:
    """Return the number of ranks that the strategies need; for a search the number of CUDA devices."""
    ranks = most_ranks(config.planner)
    if ranks is None and config.train.device != "cpu":
        import torch

        ranks = torch.cuda.device_count() or None
    if ranks is None:
        message = (
            "planner.strategies = ['search'] fits any number of ranks, and there is no CUDA device to count: "
            "state the number by --ranks N"
        )
        raise InvalidInputError(message, code="option_invalid")
    return ranks


def _for_ranks(arguments: argparse.Namespace) -> list[str]:
    """Return the command line of a rank: that of the command without `--ranks`."""
    words = ["train", arguments.config, *(["--json"] if arguments.json else [])]
    words += ["--preset", arguments.preset] if arguments.preset is not None else []
    return words + [word for override in with_resume(arguments) for word in ("--set", override)]
