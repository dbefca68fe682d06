"""The roll of a job's ranks, kept in a store."""

import socket
from collections.abc import Callable

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hydraulis.runtime.ranks import liveness
from hydraulis.runtime.ranks.liveness import RollCall


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RollCall]:
    """Give what makes the roll of a rank of five, on a host and in a start of the job."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("WORLD_SIZE", "5")

    def make(rank: int, host: str = "node-1", start: int = 0) -> RollCall:
        assert store.port
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(start))
        monkeypatch.setattr(socket, "gethostname", lambda: host)
        return RollCall()

    return make


def test_who_does_not_answer_is_missing_and_named_with_the_host(as_rank: Callable[..., RollCall]) -> None:
    for rank, host in enumerate(("node-1", "node-1", "node-2", "node-2")):
        as_rank(rank, host).sign_in()
    rolls = [as_rank(rank) for rank in (1, 0)]
    assert [roll.answer() for roll in rolls] == [True, False]
    for roll in rolls:
        assert roll.num_answers() == 2
        assert roll.missing(0.05) == [2, 3, 4]
        assert roll.named([1, 2, 3, 4]) == "rank 1 (node-1), ranks 2, 3 (node-2), rank 4 (host not known)"


def test_who_answers_late_is_waited_for_and_no_longer(
    as_rank: Callable[..., RollCall], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *late = [as_rank(rank) for rank in range(5)]
    first.answer()
    monkeypatch.setattr("hydraulis.runtime.ranks.liveness.time.sleep", lambda _: late.pop().answer())
    # The last to come ends the wait; there is nobody after it.
    assert first.missing(60.0) == []


def test_ranks_that_are_started_anew_are_called_anew(as_rank: Callable[..., RollCall]) -> None:
    assert as_rank(0).answer()
    assert as_rank(1, start=1).answer()
    assert as_rank(1, start=1).missing(0.0) == [0, 2, 3, 4]


def test_without_a_store_there_is_no_roll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_STORE_S", 0.1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(unused.getsockname()[1]))
        for name, value in {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RuntimeError):
            RollCall()
