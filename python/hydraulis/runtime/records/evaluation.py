"""What an evaluation came to."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

from hydraulis.config.layered.table import from_table


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation came to: one line of `evaluations.jsonl`.

    Attributes:
        step: iterations that were completed before it.
        loss: mean over all target tokens that are held out, in nats.
    """

    step: int
    loss: float

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line of `evaluations.jsonl`.

        Raises:
            ValueError: it is no JSON, or not these fields with values of their types.
        """
        return from_table(cls, json.loads(line), "evaluation")

    def to_json(self) -> str:
        """Give the line, without its end."""
        return json.dumps(dataclasses.asdict(self))
