"""The result of an evaluation on held-out data."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

from hydraulis.config.layered.table import from_table
from hydraulis.text.documents import parse_json


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation on held-out data: one line of `evaluations.jsonl`.

    Attributes:
        step: Completed iterations before the evaluation.
        loss: Mean loss over all held-out target tokens, in nats.
    """

    step: int
    loss: float

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line of `evaluations.jsonl`.

        Raises:
            ValueError: The line is no JSON, or a field is missing, unknown or of another type.
        """
        return from_table(cls, parse_json(line), "evaluation")

    def to_json(self) -> str:
        """Return the line as JSON, without a newline."""
        return json.dumps(dataclasses.asdict(self))
