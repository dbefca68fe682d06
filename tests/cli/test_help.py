"""`--help`: its examples are accepted, each command has `--json`, and exit codes agree with the page."""

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import ROOT, at_least
from hydraulis.cli.commands.train import make_parser as make_train_parser
from hydraulis.cli.main import COMMANDS, main, make_parser
from hydraulis.cli.options import PathEnding
from hydraulis.cli.parser import Parser

EXIT_CODES = re.compile(r"^  (\d+) +\S", re.MULTILINE)
PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")


def subcommands() -> dict[str, Parser]:
    (action,) = [one for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction)]
    assert len(action.choices) == len(COMMANDS)
    return dict(action.choices)


ALL_PARSERS = subcommands()
# Except the command whose options another program declares: tests/cli/commands/test_bench.py reads its help.
PARSERS = {name: parser for name, parser in ALL_PARSERS.items() if not parser._passes_on}
assert ALL_PARSERS.keys() - PARSERS.keys() == {"bench"}


def examples(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    text = (parser.epilog or "").replace("\\\n", " ")
    assert text.startswith("examples:\n")
    for line in text.partition("\n\n")[0].splitlines()[1:]:
        # The shell handles redirection.
        yield shlex.split(line.partition(" > ")[0])


@pytest.mark.parametrize("name", PARSERS)
def test_the_examples_of_a_command_are_accepted(name: str) -> None:
    for words in at_least(2, examples(PARSERS[name])):
        if "hydraulis.train" in words:
            # That of torchrun, as below.
            continue
        start = words.index("hydraulis")
        assert words[start + 1] == name
        make_parser().parse_args(words[start + 1 :])


IN_A_CHECKOUT = [
    words
    for parser in PARSERS.values()
    for words in examples(parser)
    if "examples/" in " ".join(words) and "--ranks" not in words
]


@pytest.mark.parametrize("words", at_least(18, IN_A_CHECKOUT), ids=" ".join)
def test_examples_that_need_a_checkout_alone_run_in_one(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").mkdir()
    for path in (ROOT / "examples").iterdir():
        (tmp_path / "examples" / path.name).symlink_to(path)
    # A search over nodes of three kinds takes 20 s for all lengths.
    lengths = tmp_path / "examples" / "lengths.txt"
    lines = lengths.read_text().splitlines(keepends=True)
    lengths.unlink()
    lengths.write_text("".join(lines[:200]))
    monkeypatch.chdir(tmp_path)
    few = ["--count", "3"] if words[1] in ("analyze", "propose", "simulate") else []
    assert main([*words[1:], *few]) == 0, capsys.readouterr().err


def test_the_examples_of_training_are_accepted() -> None:
    for words in at_least(3, examples(make_train_parser())):
        make_train_parser().parse_args(words[words.index("hydraulis.train") + 1 :])


@pytest.mark.parametrize("name", ALL_PARSERS)
def test_every_command_is_on_the_page(name: str) -> None:
    assert re.search(rf"^\| `hydraulis {name}\b", PAGE, re.MULTILINE)
    assert all(action.help for action in ALL_PARSERS[name]._actions)


# Options whose meaning depends on the command: with or without a profile, for lengths or for documents.
DIFFER = {"--gpus-per-node", "--field", "--output", "--figure", "--json"}


def test_an_option_of_several_commands_has_one_name_and_one_meaning() -> None:
    parsers = [*PARSERS.values(), make_train_parser()]
    meanings: dict[str, list[tuple[object, ...]]] = {}
    for action in (action for parser in parsers for action in parser._actions):
        for option in action.option_strings:
            described = (action.metavar, action.help, str(action.default)) if option not in DIFFER else ()
            # The ending of --output depends on the format.
            is_output = option == "--output" and isinstance(action.type, PathEnding)
            kind = Path if is_output else action.type
            meanings.setdefault(option, []).append((kind, *described))
    shared = {option: found for option, found in meanings.items() if len(found) > 1}
    for option, found in at_least(12, shared.items()):
        assert len(set(found)) == 1, f"{option}: {found}"
    assert shared.keys() > {"--profile", "--lengths", "--preset", "--model", "--set", "--seed", *DIFFER}
    for parser in parsers:
        assert parser._actions[0].option_strings == ["-h", "--help"]
        options = [action.option_strings[0] for action in parser._actions if action.option_strings]
        assert options[-1] == "--json"


def test_exit_codes_equal_those_of_the_page() -> None:
    on_page = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert EXIT_CODES.findall(make_parser().epilog or "") == at_least(5, on_page)
    assert set(EXIT_CODES.findall(make_train_parser().epilog or "")) == {"0", "2", "3", "130"} <= set(on_page)
