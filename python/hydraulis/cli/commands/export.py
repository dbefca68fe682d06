"""`hydraulis export`: makes a Hugging Face model folder of a checkpoint."""

import argparse
import sys
from pathlib import Path

from hydraulis.cli.options import add_json, json_line, written_to
from hydraulis.cli.terminal.progress import Progress
from hydraulis.extras import require_torch
from hydraulis.runtime.checkpoint.folder import checkpoint_of
from hydraulis.runtime.hugging_face.files import check_output

_EXAMPLES = """\
examples:
  hydraulis export runs/demo --output model
  hydraulis export runs/demo/checkpoints/step-00000048 --output model --dtype bfloat16

Of a run it is the newest complete checkpoint. The folder has config.json, the parameters as safetensors, and
the tokenizer's files if the run was begun from a model that had them; transformers loads it.
"""
DTYPES = ("float32", "bfloat16", "float16")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "export",
        help="make a Hugging Face model of a checkpoint",
        description="Write the parameters of a checkpoint as a Hugging Face model folder.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("source", metavar="RUN|CHECKPOINT", type=Path, help="the folder of either")
    parser.add_argument("--output", required=True, metavar="FOLDER", type=Path, help="the folder to make")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of the parameters (default: float32)"
    )
    add_json(parser, "what was written")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the folder, and say where it is.

    Raises:
        InvalidInputError: there is no checkpoint (code `checkpoint_missing`), or see `export`.
    """
    # Before torch is loaded, which takes seconds.
    checkpoint = checkpoint_of(arguments.source)
    check_output(arguments.output)
    require_torch("hydraulis export")
    with Progress() as progress:
        progress("loading torch")
        import torch

        from hydraulis.runtime.hugging_face.export import export

        dtype = getattr(torch, arguments.dtype)
        export(checkpoint, arguments.output, dtype, progress=progress.share("exporting"))
    if arguments.json:
        account = {"checkpoint": str(checkpoint), "dtype": arguments.dtype}
        sys.stdout.write(json_line(account, *sorted(arguments.output.iterdir())))
    else:
        sys.stdout.write(f"{checkpoint} as {arguments.dtype}\n{written_to(arguments.output)}")
    return 0
