"""The record of sampled texts."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

from hydraulis.config.layered.table import from_table
from hydraulis.text.documents import parse_json
from hydraulis.text.values import as_short_json


@dataclass(frozen=True, slots=True)
class SampledText:
    """A prompt and the model's continuation.

    Attributes:
        prompt: Text of the prompt.
        text: Text of the continuation, without the token that ended it.
    """

    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class Samples:
    """The continuations of all prompts after a step: one line of `samples.jsonl`.

    Attributes:
        step: Completed iterations before the samples.
        texts: Prompts with their continuations, in the order of the configuration.
    """

    step: int
    texts: tuple[SampledText, ...]

    def describe(self) -> list[str]:
        """Return a line for each prompt, cut to a length for the terminal."""
        return [
            f"step {self.step}: {as_short_json(one.prompt)} continues {as_short_json(one.text)}"
            for one in self.texts
        ]

    def tracked(self) -> dict[str, str]:
        """Return the texts for tracking services, by name."""
        return {f"samples/{index}": one.prompt + one.text for index, one in enumerate(self.texts)}

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line of `samples.jsonl`.

        Raises:
            ValueError: The line is no JSON, or a field is missing, unknown or of another type.
        """
        return from_table(cls, parse_json(line), "samples")

    def to_json(self) -> str:
        """Return the line as JSON, without a newline."""
        return json.dumps(dataclasses.asdict(self))
