"""The argument parser of all commands: raises one error with a code, and suggests the nearest option."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from hydraulis.errors import InvalidInputError
from hydraulis.text.values import nearest_name

# Processes that a command starts, and devices that another one plans for.
_SAME_NUMBER = {"--gpus": "--ranks", "--ranks": "--gpus"}


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `HydraulisError` and takes no abbreviated options.

    Unknown options are reported first: argparse would report a misspelled required option as missing.

    Args:
        passes_on: Whether the parser leaves all words, `--help` included, to a program that parses them; the
            namespace has them as `words`.
        settings: Settings of the `ArgumentParser`.
    """

    def __init__(self, *, passes_on: bool = False, **settings: Any) -> None:
        # A unique abbreviation becomes ambiguous with the next option.
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._names_of_commands: Iterable[str] = ()
        self._passes_on = passes_on

    def add_subparsers(self, **settings: Any) -> Any:
        """Declare that the first word is a command; the returned object declares each of them."""
        commands = super().add_subparsers(**settings)
        self._names_of_commands = commands.choices
        return commands

    # The overloads differ in the namespace's type, and no caller passes a namespace.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the words; the parser of each command refuses leftover words itself."""
        words = sys.argv[1:] if args is None else list(args)
        if self._passes_on:
            return argparse.Namespace(**self._defaults, words=words), []
        self._refuse_unknown(words)
        parsed, left = super().parse_known_args(words, namespace)
        if left:
            self.error(f"{self.prog} does not take {' '.join(left)}")
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            InvalidInputError: Always (code `option_invalid`).
        """
        text = f"{message.removeprefix('argument ')}; see {self.prog} --help"
        raise InvalidInputError(text, code="option_invalid")

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        # A command's parser checks the words after it; words after -- are no options.
        own = list(takewhile(lambda word: word != "--", words))
        if self._names_of_commands:
            own = list(takewhile(lambda word: word.startswith("-"), own))
        for word in own:
            name = word.partition("=")[0]
            # argparse takes a word with a space for a value.
            if word.startswith("--") and " " not in name and name not in self._option_string_actions:
                self.error(f"{self.prog} has no option {name}{_meant(name, self._option_string_actions)}")
        command = words[len(own) :][:1]
        if self._names_of_commands and not words:
            self.error(f"name a command of {self.prog}: {', '.join(self._names_of_commands)}")
        if self._names_of_commands and command and command[0] not in self._names_of_commands:
            meant = _meant(command[0], self._names_of_commands)
            self.error(f"{self.prog} has no command {command[0]}{meant}")


def _meant(word: str, known: Iterable[str]) -> str:
    """Suggest the word for the same number in another command, or the nearest one; empty if none is near."""
    words = list(known)
    same = _SAME_NUMBER.get(word)
    near = same if same in words else nearest_name(word, words)
    return "" if near is None else f" (did you mean {near}?)"
