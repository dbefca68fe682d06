"""Measurements of links, and their end when another rank is lost."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers import refused
from hydraulis.errors import HydraulisError
from hydraulis.profile import links
from hydraulis.runtime.ranks import host, host_wait, streams


class WaitingEvent:
    """An event that the device never reaches, because its exchange waits for a lost rank."""

    def __init__(self, _: torch.device) -> None:
        pass

    def is_completed(self) -> bool:
        return False

    def synchronize(self) -> None:
        pytest.fail("the host was blocked")


def test_the_loss_of_a_rank_ends_a_measured_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = HydraulisError("rank 1 ended", code="lost_rank")
    for module in (host_wait, streams, links):
        monkeypatch.setattr(module, "StreamEvent", WaitingEvent, raising=module is not links)
    monkeypatch.setattr(host_wait, "current", lambda: SimpleNamespace(lost=lost))
    monkeypatch.setattr(host, "barrier", lambda: None)
    buffer: Any = SimpleNamespace(device=torch.device("cuda", 0))
    with refused("lost_rank", "rank 1 ended"):
        links._median_ms(lambda _: None, buffer, takes_part=True)
