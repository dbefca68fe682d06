"""Counts the collectives that a rank calls over all ranks, in host memory and on its device."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import distributed_c10d

_NAMES = ("all_reduce", "broadcast", "gather", "all_gather", "reduce", "scatter", "barrier")


@contextmanager
def counted_collectives() -> Iterator[Counter[str]]:
    """Count the calls by name while the context lasts; `gather_object` counts as the collectives in it."""
    counts: Counter[str] = Counter()

    def wrapped(name: str) -> Any:
        collective = getattr(distributed_c10d, name)

        def call(*args: Any, group: Any = None, **options: Any) -> Any:
            if group is None or group is dist.group.WORLD:
                counts[name] += 1
            return collective(*args, group=group, **options)

        return call

    with ExitStack() as stack:
        for name in _NAMES:
            call = wrapped(name)
            for module in (dist, distributed_c10d):
                stack.enter_context(patch.object(module, name, call))
        yield counts
