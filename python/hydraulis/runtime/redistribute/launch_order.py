"""The points of a rank's instruction list at which gradient reductions may start.

On CUDA an exchange occupies multiprocessors until every rank of its group has launched it, and the host may
have to wait for the device at any launch: a kernel is loaded, host memory is pinned, freed memory is
returned, a connection is opened. A rank that launches an exchange before a message on which another rank's
part of the exchange depends can therefore stop all ranks.

**Rule.** Stage `s` starts the buckets of stage `s + d` after the send-receive that brings the gradient of
micro-batch `last - d`; if there is no such micro-batch, after the send-receive of the last activations. It
starts its own buckets during its last backward, and those of earlier stages after its last send-receive.

`last` is the last micro-batch with sequences. While stage `s + d` runs its last backward, stage `s` runs the
backward of micro-batch `last - d`: a bucket starts on all stages of a replica at the same time.

**Why no order of events deadlocks.** All ranks launch their gathers, messages, collectives and reductions in
one common order: each bucket of a stage after the gradient that starts the stage's last backward, and before
the gradient that the stage sends on. The first launch in this order that is not complete has all its ranks
free, so it completes, even if a rank does nothing else meanwhile.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from hydraulis._core import Backward, Forward, LayerSplit, Scheme, SendReceive
from hydraulis.runtime.pipeline.rank_work import RankWork


class LaunchPoints(NamedTuple):
    """The instructions of a rank's list after which gradient reductions may start.

    Attributes:
        startable_from: Lowest bucket that may start after each instruction.
        backwards: Indices of the backwards of micro-batches with sequences.
        last_backward: Index of the last of them.
    """

    startable_from: list[int]
    backwards: frozenset[int]
    last_backward: int

    @classmethod
    def of(cls, work: RankWork | None, split: LayerSplit) -> Self | None:
        """Look up the points of a rank's work; None without a stage.

        Args:
            work: Part of a plan that the rank carries out; None if it carries out none.
            split: Layers of each stage.
        """
        if work is None or work.position is None:
            return None
        position, last = work.position, work.last_micro_batch
        stages = bucket_stages(split, position.scheme)
        indices = [index for index, one in enumerate(work.instructions) if isinstance(one, Backward)]
        # Backwards are in the order of micro-batches.
        return cls(
            startable_from(work.instructions, stages, position.stage, last),
            frozenset(indices[index] for index, one in enumerate(work.micro_batches) if one),
            indices[last],
        )


def bucket_stages(split: LayerSplit, scheme: Scheme) -> list[int]:
    """Return the pipeline stage of each bucket: of the embedding, each layer, and the head."""
    layers = [stage for stage, count in enumerate(split.stage_layers(scheme)) for _ in range(count)]
    return [0, *layers, scheme.pp - 1]


def startable_from(
    instructions: Sequence[Forward | Backward | SendReceive], stages: Sequence[int], stage: int, last: int
) -> list[int]:
    """Return the lowest bucket that may start after each instruction; buckets start in descending order.

    The stage's own buckets also wait for their gradients. Buckets of earlier stages start after the list.

    Args:
        instructions: Instruction list of the rank.
        stages: Stage of each bucket in the rank's replica, ascending (see `bucket_stages`).
        stage: Stage of the rank.
        last: Last micro-batch with sequences.
    """
    # The last stage receives no gradient, and no stage is later.
    latest = stage if stage == stages[-1] else stages[-1] + 1
    lowest = []
    for instruction in instructions:
        match instruction:
            case SendReceive(next=True, receive=int(gradient)):
                latest = min(latest, stage + max(0, last - gradient))
            case SendReceive(next=True, send=activations) if activations == last:
                latest = min(latest, stage + last + 1)
        lowest.append(sum(one < latest for one in stages))
    return lowest
