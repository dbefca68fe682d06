"""Ranks of one attempt find each other in a store that has the keys of earlier attempts."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hydraulis.runtime.ranks.meeting import Meeting

TIMEOUT = timedelta(seconds=20)


def attend(store: HashStore, rank: int, world_size: int) -> str:
    meeting = Meeting(store, rank, world_size, TIMEOUT)
    attempt = meeting.find()
    meeting.complete()
    return attempt


def test_each_meeting_in_one_store_has_its_own_name() -> None:
    store = HashStore()
    found: list[str] = []
    for _ in range(3):
        with ThreadPoolExecutor(4) as threads:
            names = list(threads.map(lambda rank: attend(store, rank, 4), range(4)))
        assert len(set(names)) == 1
        found += set(names)
    assert len(set(found)) == 3


def test_a_rank_of_an_earlier_meeting_does_not_complete_a_later_one() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda rank: attend(store, rank, 2), range(2)))
    alone = Meeting(store, 0, 2, TIMEOUT)
    attempt = alone.find()
    with ThreadPoolExecutor(1) as threads:
        completing = threads.submit(alone.complete)
        with pytest.raises(RuntimeError):
            store.wait([f"{attempt}/complete"], timedelta(seconds=0.3))
        assert attend(store, 1, 2) == attempt
        completing.result()


def test_a_rank_waits_a_bounded_time_for_rank_zero() -> None:
    with pytest.raises(RuntimeError):
        Meeting(HashStore(), 1, 2, timedelta(seconds=0.1)).find()
