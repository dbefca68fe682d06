"""Runs commands in the process of a test."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.main import main


def options_of(command: str, options: dict[str, str], *more: str) -> list[str]:
    """Return the words of a command line."""
    return [command, *(word for pair in options.items() for word in pair), *more]


def printed_document(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> dict[str, Any]:
    """Run a command that prints one line of JSON, and return its document."""
    assert main(list(arguments)) == 0
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    found: dict[str, Any] = json.loads(text)
    return found


def assert_refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], code: str) -> str:
    """Run a command that prints one line, an error with this code; return the line."""
    assert main(list(arguments)) == EXIT_REFUSED
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"hydraulis: error [{code}]: ")
    assert output.err.count("\n") == 1
    return output.err


def write_drawn_lengths(folder: Path) -> Path:
    """Write 5,000 lengths with a long tail, at most 30,000 tokens each."""
    path = folder / "lengths.npy"
    np.save(path, np.random.default_rng(0).lognormal(6.2, 1.2, 5_000).astype(int).clip(1, 30_000))
    return path


def drawn_options(command: str, lengths: Path, count: int, *more: str) -> list[str]:
    """Return the words of a command that plans batches of the drawn lengths."""
    options = {
        "--profile": "llama-32b-a800",
        "--gpus": "64",
        "--lengths": str(lengths),
        "--tokens-per-batch": "60000",
        "--count": str(count),
    }
    return options_of(command, options, *more)
