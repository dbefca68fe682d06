"""The figures of several benches in one record, with the load of the machine before each.

    python -m benches.figures [--record FOLDER] COMMAND...

`make bench` gives the commands, each as one argument, such as `"target/release/plan-bench --gpus 64"`. Their
lines go to the terminal as they come, and with `--record` into a page of that folder.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from benches.gpu.machine import describe


class Measured(NamedTuple):
    """The figures of one command.

    Attributes:
        command: The command line.
        load: Load average of the last minute before the command.
        seconds: Wall time of the command.
        lines: Lines that it printed.
    """

    command: str
    load: float
    seconds: float
    lines: str


def measure(command: str) -> Measured:
    """Run a command, and print its lines as they come; its failure ends the program with the same code."""
    load, start = os.getloadavg()[0], time.monotonic()
    lines = []
    with subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
    if process.returncode:
        sys.exit(process.returncode)
    # The record is read elsewhere: paths are those from the root of the checkout.
    relative = command.replace(f"{Path.cwd()}/", "")
    return Measured(relative, load, time.monotonic() - start, "".join(lines))


def page(measured: list[Measured]) -> str:
    """Return the page of the record."""
    machine = describe(torch.device("cpu"))
    facts = ", ".join(f"{name} {machine[name]}" for name in ("commit", "python", "cpus", "device", "date"))
    parts = [f"# {machine['date'][:10]}: figures of all benches\n\n{facts}.\n"]
    parts += [
        f"```sh\n{one.command}\n```\n\n"
        f"Load average {one.load:.1f} before, {one.seconds:.0f} s of wall time.\n\n"
        f"```\n{one.lines.rstrip()}\n```\n"
        for one in measured
    ]
    return "\n".join(parts)


def main() -> None:
    """Run all commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="folder of the page")
    parser.add_argument("commands", nargs="+", metavar="COMMAND", help="command line of a bench")
    options = parser.parse_args()
    text = page([measure(command) for command in options.commands])
    if options.record:
        path = options.record / f"{text[2:12]}-figures.md"
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
