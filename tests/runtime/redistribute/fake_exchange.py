"""An exchange of a rank with itself that completes when the test decides, and its buckets."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hydraulis.runtime.state.places import Places


class FakeWork:
    """Ends when the test says so, or when it is waited for."""

    def __init__(self, outgoing: Tensor, incoming: Tensor, source: Tensor | None) -> None:
        self.outgoing = outgoing
        self.incoming = incoming
        self.waits = 0
        self._source = source
        self._is_done = False

    def end(self) -> None:
        if not self._is_done and self._source is not None:
            self.incoming.copy_(self._source)
        elif not self._is_done and len(self.incoming) == len(self.outgoing):
            self.incoming.copy_(self.outgoing)
        self._is_done = True

    def is_completed(self) -> bool:
        return self._is_done

    def wait(self) -> None:
        self.waits += 1
        self.end()


class FakeExchange:
    """Remembers what was started; what comes in is what the test gives, else what went
    out if that is as much.

    Args:
        sources: Sources by the number of the start.
        has_side_stream: Whether exchanges have a stream of their own.
    """

    # Other ranks are in its group.
    is_alone = False

    def __init__(self, sources: Sequence[Tensor] | None = None, *, has_side_stream: bool = False) -> None:
        self.works: list[FakeWork] = []
        self.has_side_stream = has_side_stream
        self.joins = 0
        self.place = 0
        # Another one, where there are several nodes.
        self.between: FakeExchange | None = None
        self._sources = sources

    @property
    def inside(self) -> "FakeExchange":
        return self

    def on_side_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        self.joins += 1

    def start(self, outgoing: Tensor, incoming: Tensor, *_counts: NDArray[np.int64]) -> FakeWork:
        source = None if self._sources is None else self._sources[len(self.works)]
        self.works.append(FakeWork(outgoing, incoming, source))
        return self.works[-1]


Segments = Sequence[tuple[int, int]]


def trade(near: Segments, far: Segments) -> Any:
    """Stand for a trade; segments are offset and elements, one for each peer."""

    def segments(pairs: Segments) -> NDArray[np.int64]:
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    return SimpleNamespace(
        near=segments(near),
        far=segments(far),
        near_counts=segments(near)[:, 1],
        far_counts=segments(far)[:, 1],
    )


def bucket(held: Segments, shard: Segments) -> Any:
    """Stand for a bucket's transfer on one node."""
    inside = trade(held, shard)
    return SimpleNamespace(inside=inside, relayed=0, room=int(inside.far_counts.sum()), between=None)


def relayed_bucket(inside: Any, relayed: int, between: Any) -> Any:
    """Stand for a bucket's transfer on several."""
    room = int(inside.far_counts.sum() + between.far_counts.sum()) + relayed
    return SimpleNamespace(inside=inside, relayed=relayed, room=room, between=between)


def shards(owned: int, local: int, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Stand for a rank's optimizer shard and its local shard of so many elements."""
    master = torch.arange(1, owned + 1, dtype=torch.float32)
    optimizer_shard = SimpleNamespace(
        master=master,
        gradient=torch.full_like(master, 99.0),
        values_at=lambda segments, *, trained: (master, segments),  # noqa: ARG005
    )
    wide = torch.promote_types(dtype, torch.float32)
    local_shard = SimpleNamespace(
        parameter=torch.zeros(local, dtype=dtype),
        gradient=torch.full((local,), 7.0, dtype=wide),
        parameter_places=Places(local),
        gradient_places=Places(local),
        common_gradients=local,
        least_gradients=local,
    )
    return optimizer_shard, local_shard
