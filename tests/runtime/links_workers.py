"""Worker of the tests of links: the sizes that are sent, and the rates that follow from a clock."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.parallel.groups import ProcessGroups
from hydraulis.planner.profile_document import LinkMeasurement
from hydraulis.profile.links import LinkBytes, measure_links


class Report(NamedTuple):
    """The measured links of a rank, and its messages.

    Attributes:
        links: Measured links.
        timed: Bytes of the buffers of each timed work.
        num_sent: Number of all exchanges, those that were not timed included.
    """

    links: list[LinkMeasurement]
    timed: list[list[int]]
    num_sent: int


def measured_links(sizes: LinkBytes, times_ms: Sequence[float]) -> Report:
    """Measure the links of all ranks with a clock that takes these times, one after the other.

    Args:
        sizes: Bytes of the buffers.
        times_ms: Time of each repetition.
    """
    sent: list[int] = []
    made: list[int] = []
    timed: list[list[int]] = []
    times = list(times_ms)
    to_all, batch, empty_like = dist.all_to_all_single, dist.batch_isend_irecv, torch.empty_like

    def all_to_all(received: Tensor, buffer: Tensor, **options: Any) -> Any:
        sent.append(buffer.nbytes)
        return to_all(received, buffer, **options)

    def send(operations: list[Any]) -> Any:
        sent.append(operations[0].tensor.nbytes)
        return batch(operations)

    def made_like(x: Tensor) -> Tensor:
        made.append(x.nbytes)
        return empty_like(x)

    def clock(work: Callable[[], None]) -> float:
        num_sent, num_made = len(sent), len(made)
        work()
        assert len(made) == num_made, "a timed exchange allocates its output"
        timed.append(sent[num_sent:])
        return times.pop(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", all_to_all)
        patch.setattr(dist, "batch_isend_irecv", send)
        patch.setattr(torch, "empty_like", made_like)
        groups = ProcessGroups(timedelta(seconds=60))
        links = measure_links(groups, torch.device("cpu"), sizes, clock)
    assert not times
    assert made
    return Report(links, timed, len(sent))
