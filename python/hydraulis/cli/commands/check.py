"""`hydraulis check`: checks of a run that need no rank."""

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from hydraulis._core import Cluster
from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.options import add_gpus, add_json, add_resume, add_run_config, with_resume
from hydraulis.cli.terminal.fitted import fitted, terminal_width
from hydraulis.cli.terminal.progress import Progress
from hydraulis.config.layered.layers import DEFAULT
from hydraulis.config.run import load_with_origins
from hydraulis.errors import HydraulisError
from hydraulis.extras import require_torch
from hydraulis.preflight.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXAMPLES = """\
examples:
  hydraulis check examples/demo.toml --gpus 4
  hydraulis check run.toml --preset node --gpus 8 --set planner.profile=profile.json
  hydraulis check run.toml --gpus 2 --resume runs/demo
  hydraulis check run.toml --preset nodes --gpus 64 --gpus-per-node 8 --json

Each line is the result of one check: `ok`; `warning` if the run would start, but probably not as intended;
`later` if the answer needs the run itself or follows from an earlier refusal; `refused` with a remedy. No
rank is started and no file is left behind. Of data without an index, the first records are read;
`hydraulis analyze RUN.toml` indexes the data, and more is known afterwards. The checks need the packages of
training: pip install '.[train,data]' in a checkout. Exit code 2: a check is refused.
"""
_NODE = 8
# Columns of the status and the name of a check, and of the gaps after them.
_TEXT_COLUMN = 24


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "check",
        help="check a run before it is started",
        description="Check everything about a run that needs no rank.",
        epilog=_EXAMPLES,
    )
    add_run_config(parser)
    add_resume(parser)
    add_gpus(parser, f"--gpus, at most {_NODE}")
    add_json(parser, "all findings")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the checks, and print each finding as soon as it is known.

    Returns:
        0 without refusals; 2 otherwise.
    """
    cluster = Cluster(arguments.gpus, arguments.gpus_per_node or min(arguments.gpus, _NODE))

    found = []
    with Progress() as progress:
        for finding in _findings(arguments, cluster, progress):
            found.append(finding)
            if not arguments.json:
                with progress.aside():
                    _print(finding)
    ready = all(finding.status != "refused" for finding in found)
    if arguments.json:
        document = {"ready": ready, "findings": [dataclasses.asdict(finding) for finding in found]}
        sys.stdout.write(json.dumps(document) + "\n")
    return 0 if ready else EXIT_REFUSED


def _print(finding: "Finding") -> None:
    code = "" if finding.code is None else f"[{finding.code}] "
    line = f"{finding.status:8} {finding.name:14} {code}{finding.text}\n"
    sys.stdout.write(fitted(line, terminal_width(), indent=_TEXT_COLUMN))
    sys.stdout.flush()


def _findings(arguments: argparse.Namespace, cluster: Cluster, progress: Progress) -> "Iterator[Finding]":
    name = "configuration"
    try:
        loaded = load_with_origins(arguments.config, with_resume(arguments), arguments.preset)
    except HydraulisError as error:
        yield Finding(name=name, status="refused", text=str(error), code=error.code)
        return
    yield Finding(name=name, status="ok", text=f"{arguments.config} is valid")
    progress("loading torch")
    require_torch("hydraulis check")
    # Imported here: a refused configuration needs no torch.
    from hydraulis.preflight.run import preflight

    # The origin of a preset's value is `preset NAME`.
    is_memory_set = not loaded.origins["planner.memory_mib"].startswith(("preset ", DEFAULT))
    yield from preflight(loaded.config, cluster, progress, is_memory_set=is_memory_set)
