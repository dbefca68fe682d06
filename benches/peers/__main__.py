"""All comparisons with other frameworks, in one run, and their record.

    python -m benches.peers [--record FOLDER]

Both tables go to the terminal; with `--record` a page with them, the machine and the versions is written.
"""

import argparse
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from benches.gpu.machine import describe

PACKAGES = ("transformers", "trl", "axolotl", "verl", "datasets", "accelerate", "torch", "numpy")
TITLES = {
    "benches.peers.planning": "Planning a step against the proven floor",
    "benches.peers.training": "Two ranks train long-tail text",
}


def run(module: str) -> str:
    """Run a comparison, print its lines as they come, and return them."""
    lines = []
    with subprocess.Popen([sys.executable, "-m", module], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
    if process.returncode:
        sys.exit(process.returncode)
    return "".join(lines)


def page(tables: dict[str, str]) -> str:
    """Return the page of a record."""
    machine = describe(torch.device("cpu"))
    facts = ", ".join(f"{name} {machine[name]}" for name in ("commit", "python", "cpus", "load", "date"))
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    parts = [f"# {machine['date'][:10]}: batches of other frameworks\n\n{facts}; {versions}.\n"]
    parts += [
        f"## {TITLES[module]}\n\n`python -m {module}`; its head describes the columns.\n\n{table}"
        for module, table in tables.items()
    ]
    return "\n".join(parts)


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--record", type=Path, metavar="FOLDER", help="folder of the page, such as benches/record"
    )
    options = parser.parse_args()
    tables = {module: run(module) for module in TITLES}
    if options.record:
        text = page(tables)
        path = options.record / f"{text[2:12]}-peers.md"
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
