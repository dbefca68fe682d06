"""`hydraulis export`: writes a checkpoint as a Hugging Face model."""

import argparse
import sys
from pathlib import Path

from hydraulis.cli.options import add_json, json_line, written_to
from hydraulis.cli.terminal.progress import Progress
from hydraulis.extras import require_torch
from hydraulis.runtime.checkpoint.best import best_of_run
from hydraulis.runtime.checkpoint.folder import pinned_checkpoint
from hydraulis.runtime.hugging_face.files import check_output

_EXAMPLES = """\
examples:
  hydraulis export runs/demo --output model
  hydraulis export runs/demo/checkpoints/step-00000048 --output model --dtype bfloat16
  hydraulis export runs/lora --output adapters
  hydraulis export runs/lora --output model --merged

For a run, its newest complete checkpoint is exported. The folder gets config.json, the parameters as
safetensors files, and the initial model's tokenizer files, if it had any; transformers can load it. Of a run
with a section [lora] the folder gets the adapters alone, which peft can load, unless they are merged.
"""
DTYPES = ("float32", "bfloat16", "float16")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "export",
        help="write a checkpoint as a Hugging Face model",
        description="Write the parameters of a checkpoint as a Hugging Face model folder.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "source", metavar="RUN|CHECKPOINT", type=Path, help="the folder of a run or of a checkpoint"
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", type=Path, help="the folder to create")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="type of the parameters (default: float32)"
    )
    parser.add_argument(
        "--best", action="store_true", help="export the run's checkpoint with the lowest evaluation loss"
    )
    parser.add_argument(
        "--merged", action="store_true", help="export the whole model, with its adapters added to it"
    )
    add_json(parser, "the exported checkpoint")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the folder and print its path.

    Returns:
        0.

    Raises:
        InvalidInputError: There is no checkpoint (code `checkpoint_missing`), or the folder cannot be written
            (see `check_output` and `export`).
    """
    # Found before torch is loaded, which takes seconds, and pinned until it is read.
    source = best_of_run(arguments.source) if arguments.best else arguments.source
    with pinned_checkpoint(source) as checkpoint:
        check_output(arguments.output)
        require_torch("hydraulis export")
        with Progress() as progress:
            progress("loading torch")
            import torch

            from hydraulis.runtime.hugging_face.export import export

            dtype = getattr(torch, arguments.dtype)
            share = progress.share("exporting")
            export(checkpoint, arguments.output, dtype, progress=share, is_merged=arguments.merged)
    if arguments.json:
        document = {"checkpoint": str(checkpoint), "dtype": arguments.dtype}
        sys.stdout.write(json_line(document, *sorted(arguments.output.iterdir())))
    else:
        sys.stdout.write(f"{checkpoint} as {arguments.dtype}\n{written_to(arguments.output)}")
    return 0
