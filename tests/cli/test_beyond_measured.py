"""Commands that predict say how far they go beyond what a profile has measured, in the same words."""

import json
from pathlib import Path

import numpy as np
import pytest

from hydraulis.cli.main import main
from profiles import made_up_profile

LONGEST = 300
CLUSTER = ("--gpus", "4", "--gpus-per-node", "4")
# Everything runs under <tp4>, a sequence of 300 tokens in each micro-batch.
SAID = "A micro-batch of <tp4> is 2.0 times as long as what was measured of it: its time is an extrapolation."


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("beyond") / "lengths.npy"
    np.save(path, np.full(40, LONGEST))
    return path


def commands(lengths: Path, profile: Path) -> dict[str, list[str]]:
    given = ["--profile", str(profile), *CLUSTER]
    read = ["--lengths", str(lengths)]
    batches = ["--tokens-per-batch", "1200", "--count", "2"]
    return {
        "plan": ["plan", *given, *read],
        "simulate": ["simulate", *given, *read, *batches, "--compare", "search;1x<tp4>"],
        "propose": ["propose", *given, *read, *batches, "-k", "1"],
        "analyze": ["analyze", *given, *read, "--tokens-per-batch", "1200", "--count", "2"],
    }


def profile_measured_to(path: Path, tokens: int) -> Path:
    """Write a profile whose measurements reached so far; no micro-batch holds two of the sequences."""
    document = json.loads(made_up_profile({"<tp4>": 320}).to_json())
    document["schemes"][0]["fit"] = {
        "points": 8,
        "outliers": 0,
        "relative_error": 0.01,
        "held_out_error": 0.01,
        "range": {"longest_tokens": tokens, "micro_batch_tokens": tokens},
    }
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", ["plan", "simulate", "propose", "analyze"])
def test_commands_report_an_extrapolation(
    name: str, lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(commands(lengths, profile_measured_to(tmp_path / "short.json", LONGEST // 2))[name]) == 0
    assert SAID in capsys.readouterr().out
    assert main(commands(lengths, profile_measured_to(tmp_path / "enough.json", LONGEST))[name]) == 0
    assert "is an extrapolation" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["simulate", "propose", "analyze"])
def test_documents_report_an_extrapolation(
    name: str, lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = commands(lengths, profile_measured_to(tmp_path / "short.json", LONGEST // 2))[name]
    assert main([*command, "--json"]) == 0
    assert SAID in capsys.readouterr().out
