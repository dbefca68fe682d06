"""The parser of every command: what it refuses is one error with a code, which names the nearest word."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

from hydraulis.errors import InvalidInputError
from hydraulis.text.nearest import nearest_name


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises where argparse prints its usage, and takes no abbreviated option.

    A word that is no option is looked for before anything else: argparse itself would first miss the required
    option that was misspelled.
    """

    def __init__(self, **settings: Any) -> None:
        # An abbreviation that is unique today is not when the next option comes.
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._names_of_commands: Iterable[str] = ()

    def add_subparsers(self, **settings: Any) -> Any:
        """Declare that the first word is a command; each is declared by what this returns."""
        commands = super().add_subparsers(**settings)
        self._names_of_commands = commands.choices
        return commands

    # Its overloads differ in the type of the namespace, which nobody here gives.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; what is left over is refused here, by the parser of the command that it was given to."""
        words = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown(words)
        parsed, left = super().parse_known_args(words, namespace)
        if left:
            self.error(f"{self.prog} does not take {' '.join(left)}")
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            InvalidInputError: always (code `option_invalid`).
        """
        text = f"{message.removeprefix('argument ')}; {self.prog} --help lists the options"
        raise InvalidInputError(text, code="option_invalid")

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        # What follows a command is for its own parser to judge, and what follows -- is no option.
        own = list(takewhile(lambda word: word != "--", words))
        if self._names_of_commands:
            own = list(takewhile(lambda word: word.startswith("-"), own))
        for word in own:
            name = word.partition("=")[0]
            # With a space inside, argparse takes it for a value.
            if word.startswith("--") and " " not in name and name not in self._option_string_actions:
                self.error(f"{self.prog} has no option {name}{_meant(name, self._option_string_actions)}")
        command = words[len(own) :][:1]
        if self._names_of_commands and not words:
            self.error(f"name a command of {self.prog}: {', '.join(self._names_of_commands)}")
        if self._names_of_commands and command and command[0] not in self._names_of_commands:
            meant = _meant(command[0], self._names_of_commands)
            self.error(f"{self.prog} has no command {command[0]}{meant}")


def _meant(word: str, known: Iterable[str]) -> str:
    """Ask whether the nearest of the known words was meant, if one is near; else nothing."""
    near = nearest_name(word, known)
    return "" if near is None else f" (did you mean {near}?)"
