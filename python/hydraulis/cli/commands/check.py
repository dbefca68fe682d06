"""`hydraulis check`: what can be known of a run before any rank starts."""

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from hydraulis._core import Cluster
from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.options import add_gpus, add_json, add_resume, add_run_config, with_resume
from hydraulis.cli.terminal.progress import Progress
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

Each line is one look at the run: `ok`, `warning` where it would start, but hardly as it is meant, `later`
where only the run itself can tell or a refusal above comes first, or `refused` with what to do. Nothing is
left behind and no rank is started; data that are not indexed yet are tried by their first records. It needs
what training does: pip install 'hydraulis[train,data]'. Exit code 2: something was refused.
"""
_NODE = 8


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "check",
        help="look at a run before it is started",
        description="Look at all of a run that can be known before any rank starts.",
        epilog=_EXAMPLES,
    )
    add_run_config(parser)
    add_resume(parser)
    add_gpus(parser, f"all, at most {_NODE}")
    add_json(parser, "all findings")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look and print.

    Returns:
        0, with warnings too; 2 if anything is refused.
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
    sys.stdout.write(f"{finding.status:8} {finding.name:14} {code}{finding.text}\n")
    sys.stdout.flush()


def _findings(arguments: argparse.Namespace, cluster: Cluster, progress: Progress) -> "Iterator[Finding]":
    name = "configuration"
    try:
        loaded = load_with_origins(arguments.config, with_resume(arguments), arguments.preset)
    except HydraulisError as error:
        yield Finding(name=name, status="refused", text=str(error), code=error.code)
        return
    yield Finding(name=name, status="ok", text=f"{arguments.config} is a run's")
    progress("loading torch")
    require_torch("hydraulis check")
    # Only now: a configuration is refused without torch.
    from hydraulis.preflight.run import preflight

    # What a preset gives has that in front of its name.
    memory_asked = not loaded.origins["planner.memory_mib"].startswith("preset ")
    yield from preflight(loaded.config, cluster, progress, memory_asked=memory_asked)
