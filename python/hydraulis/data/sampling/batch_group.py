"""Batches of consecutive steps between which a lookahead has moved sequences."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from hydraulis.config.layered.table import from_table
from hydraulis.data.sampling.epoch_order import SequenceIndices
from hydraulis.text.documents import parse_json

Move = tuple[int, int, int]
"""Step of a sequence's own batch, position in that batch, and the step that trains the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """The batches of consecutive steps, each sequence of which is trained in exactly one of these steps.

    Attributes:
        first_step: Number of the first step, counted from 1.
        last_step: Number of the last step.
        moves: The sequences that are trained in another step than that of their own batch.
    """

    first_step: int
    last_step: int
    moves: tuple[Move, ...] = ()

    @classmethod
    def of_members(cls, first_step: int, members: Sequence[npt.NDArray[np.int64]]) -> Self:
        """Return the group of a lookahead that begins with a step.

        Args:
            first_step: Number of the step.
            members: Sequences of each step, as `LookaheadPlan.members`: int64 [n, 2], the index of the
                sequence's own batch and its position in it.
        """
        moves = (
            (first_step + int(batch), int(position), first_step + index)
            for index, of_step in enumerate(members)
            for batch, position in of_step[of_step[:, 0] != index]
        )
        return cls(first_step=first_step, last_step=first_step + len(members) - 1, moves=tuple(moves))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text of `to_json`."""
        return from_table(cls, parse_json(text), "group")

    def to_json(self) -> str:
        """Return the group as JSON."""
        return json.dumps(asdict(self))

    def __contains__(self, step: int) -> bool:
        return self.first_step <= step <= self.last_step

    def num_moved(self, step: int) -> int:
        """Count the sequences that the step trains and that are not from its own batch."""
        return sum(to == step for _, _, to in self.moves)

    def missing(self, batch: Callable[[int], SequenceIndices]) -> Move | None:
        """Return a move whose sequence or step is after the end of the data; None without one.

        Args:
            batch: Function from a step to the sequences of its own batch, none after the end.
        """
        sizes = {step: len(batch(step)) for step in range(self.first_step, self.last_step + 1)}
        lost = (move for move in self.moves if move[1] >= sizes[move[0]] or not sizes[move[2]])
        return next(lost, None)

    def sequences(self, step: int, batch: Callable[[int], SequenceIndices]) -> SequenceIndices:
        """Return the sequences that a step trains, in the order of their own batches.

        Args:
            step: Number of the step.
            batch: Function from a step to the sequences of its own batch.
        """
        own = batch(step)
        leaving = {position for of, position, _ in self.moves if of == step}
        coming = [(of, position) for of, position, to in self.moves if to == step]
        if not leaving and not coming:
            return own
        by_step = {step: own} | {of: batch(of) for of in {of for of, _ in coming}}
        members = [(step, position) for position in range(len(own)) if position not in leaving]
        indices = [by_step[of][position] for of, position in sorted(members + coming)]
        return np.array(indices, dtype=np.int64)
