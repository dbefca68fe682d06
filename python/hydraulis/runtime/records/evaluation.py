"""The result of an evaluation on held-out data."""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from hydraulis.config.layered.table import from_table
from hydraulis.text.documents import parse_json


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The loss on one source.

    Attributes:
        source: Index of the source in the configuration, in `data.validation` or `data.sources`.
        loss: Mean loss over the source's evaluated targets, in nats.
        targets: Number of these targets.
    """

    source: int
    loss: float
    targets: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation on held-out data: one line of `evaluations.jsonl`.

    Attributes:
        step: Completed iterations before the evaluation.
        loss: Mean loss over held-out target tokens, in nats; with weights, sources have their shares in
            training.
        data: Fingerprint of the evaluated sequences.
        sources: Loss on each source; empty if there is only one.
    """

    step: int
    loss: float
    data: str
    sources: tuple[SourceLoss, ...] = ()

    def describe(self) -> str:
        """Return the loss, and that on each source if there are several."""
        by_source = ", ".join(f"source {one.source}: {one.loss:.3f}" for one in self.sources)
        return f"{self.loss:.3f}" + (f" ({by_source})" if by_source else "")

    def tracked(self) -> dict[str, float]:
        """Return the losses for tracking services, by name."""
        by_source = {f"evaluation/source_{one.source}/loss": one.loss for one in self.sources}
        return {"evaluation/loss": self.loss} | by_source

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line of `evaluations.jsonl`.

        Raises:
            ValueError: The line is no JSON, or a field is missing, unknown, of another type or not finite.
        """
        evaluation = from_table(cls, parse_json(line), "evaluation")
        if not all(map(math.isfinite, (evaluation.loss, *(one.loss for one in evaluation.sources)))):
            message = f"the evaluation after step {evaluation.step} has a loss that is not finite"
            raise ValueError(message)
        return evaluation

    def to_json(self) -> str:
        """Return the line as JSON, without a newline."""
        fields = dataclasses.asdict(self)
        if not self.sources:
            del fields["sources"]
        return json.dumps(fields)


def of_newest_data(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the evaluations of the same sequences as the last one: losses of others do not compare."""
    return [one for one in evaluations if one.data == evaluations[-1].data]
