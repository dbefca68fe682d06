"""Errors of the command line: one line, a code, and the nearest word."""

import pytest

from helpers import at_least
from hydraulis.cli.commands import bench
from hydraulis.cli.commands import train as command
from hydraulis.cli.exit import EXIT_REFUSED
from hydraulis.cli.main import COMMANDS, main
from hydraulis.cli.ranks import report as rank_report

PLAN = ["plan", "--profile", "llama-7b-a800", "--gpus", "8", "--lengths", "x"]
PACK = ["pack", "--lengths", "x", "--window", "8", "--output", "x.npz"]


@pytest.mark.parametrize(
    ("words", "says", "helps"),
    [
        ([*PLAN, "--bogus"], "hydraulis plan has no option --bogus", "hydraulis plan"),
        (
            [*PLAN, "--stratgies=search"],
            "no option --stratgies (did you mean --strategies?)",
            "hydraulis plan",
        ),
        # The misspelled option is reported, not a missing one.
        (["train", "run.toml", "--gpus", "4"], "no option --gpus (did you mean --ranks?)", "hydraulis train"),
        (
            ["check", "run.toml", "--ranks", "4"],
            "no option --ranks (did you mean --gpus?)",
            "hydraulis check",
        ),
        (["pack", "--wndow", "8"], "no option --wndow (did you mean --window?)", "hydraulis pack"),
        (["pack", "--wind", "8"], "no option --wind (did you mean --window?)", "hydraulis pack"),
        (
            ["profile", "x", "--output", "y.json", "--ranks", "0"],
            "--ranks: '0' must be a whole number of at least 1",
            "hydraulis profile",
        ),
        (["--bogus", *PACK], "hydraulis has no option --bogus", "hydraulis"),
        ([*PACK, "more"], "hydraulis pack does not take more", "hydraulis pack"),
        ([*PACK, "-x"], "hydraulis pack does not take -x", "hydraulis pack"),
        (["plna", "--gpus", "8"], "hydraulis has no command plna (did you mean plan?)", "hydraulis"),
        (["pack", "--lengths", "x"], "arguments are required: --window, --output", "hydraulis pack"),
        ([], "name a command of hydraulis: train, ", "hydraulis"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str, helps: str
) -> None:
    assert main(words) == EXIT_REFUSED
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("hydraulis: error [option_invalid]: ")
    assert says in output.err
    assert output.err.endswith(f"see {helps} --help\n")
    assert output.err.count("\n") == 1
    assert "argument --" not in output.err


def test_words_after_two_dashes_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json", "--", "--run.toml"]) == EXIT_REFUSED
    assert "[file_unreadable]: run configuration '--run.toml'" in capsys.readouterr().err


def test_no_command_takes_an_abbreviated_option(capsys: pytest.CaptureFixture[str]) -> None:
    # The program behind `bench` suggests options in its own words: tests/cli/commands/test_bench.py.
    for one in at_least(10, set(COMMANDS) - {bench}):
        name = one.__name__.rpartition(".")[2]
        assert main([name, "--jso"]) == EXIT_REFUSED
        error = capsys.readouterr().err
        assert [part for part in (f"hydraulis {name} ", "--jso ", "--json") if part not in error] == []


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_options_of_ranks_are_refused_once_on_a_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: str, lines: int
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.setattr(rank_report, "PATIENCE_S", 0.0)
    for variable in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(variable, rank)
    assert main(["profile", "run.toml", "--outptu", "x.json"]) == EXIT_REFUSED
    assert capsys.readouterr().err.count("--outptu") == lines
    assert command.main(["run.toml", "--res", "latest"]) == EXIT_REFUSED
    assert capsys.readouterr().err == lines * (
        "hydraulis.train: error [option_invalid]: python -m hydraulis.train has no option --res (did you "
        "mean --resume?); see python -m hydraulis.train --help\n"
    )
