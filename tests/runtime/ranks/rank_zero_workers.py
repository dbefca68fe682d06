"""What the ranks of test_rank_zero.py do."""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch.distributed import distributed_c10d

from hydraulis.data.corpus import Corpus
from hydraulis.errors import HydraulisError, InfeasibleError, InvalidInputError
from hydraulis.runtime.ranks import rank_zero
from hydraulis.runtime.ranks.every_rank import raise_everywhere
from hydraulis.runtime.ranks.rank_zero import (
    corpus_from_rank_zero,
    from_living_rank_zero,
    from_rank_zero,
    on_rank_zero,
    on_rank_zero_alone,
)
from runtime.collective_counts import counted_collectives
from runtime.tiny import made_up_corpus

# The longest text that travels with the header; JSON puts it in quotes.
FIRST = rank_zero._FIRST_BYTES - rank_zero._HEADER_BYTES - 2
VALUES: tuple[object, ...] = (
    "",
    "plain",
    "\udcff",
    "y" * (FIRST - 1),
    "y" * FIRST,
    "y" * (FIRST + 1),
    'ÄÖ 水 🚰 \x00 \n " \\ </error>',
    '{"error": "HydraulisError"}',
    "x" * 300_000,
    None,
    [0.1, -1, True],
    {"a": {"b": []}},
)
ERRORS = (
    HydraulisError("a plain one", code="plan_broken"),
    InvalidInputError("field 'ü' = \"水\"\nsecond line", code="profile_invalid"),
    InfeasibleError("too long", code="sequence_too_long"),
)
Caught = tuple[str, str, str]


def values() -> tuple[list[object], int]:
    """Return what arrived, and how often this rank was asked to make it."""
    calls = []

    def make(value: object) -> object:
        calls.append(value)
        return value

    return [from_rank_zero(partial(make, value)) for value in VALUES], len(calls)


def errors_and_what_comes_after() -> tuple[list[Caught], str]:
    caught = []
    for error in ERRORS:
        try:
            from_rank_zero(lambda error=error: _raise(error))  # type: ignore[misc]
        except HydraulisError as received:
            caught.append(describe(received))
    return caught, from_rank_zero(lambda: "after")


def acts() -> tuple[int, Caught, Caught]:
    """Act on rank 0: once well, once refused, and once failing in a way that nobody foresaw."""
    calls = []
    on_rank_zero(lambda: calls.append("done"))
    caught = []
    for error in (HydraulisError("disk full", code="file_unwritable"), ZeroDivisionError("oh")):
        try:
            on_rank_zero(partial(_refuse, error))
        except HydraulisError as received:
            caught.append(describe(received))
        except ZeroDivisionError as received:
            caught.append((type(received).__name__, "", str(received)))
    return len(calls), caught[0], caught[1]


def acts_alone() -> tuple[list[int], list[str]]:
    """Act on rank 0 alone, fail there, and say what the next two replies of rank 0 bring."""
    acted: list[int] = []
    with counted_collectives() as counts:
        on_rank_zero_alone(lambda: acted.append(dist.get_rank()))
        on_rank_zero_alone(partial(_refuse, HydraulisError("disk full", code="file_unwritable")))
        assert not counts
    answers = []
    for _ in range(2):
        try:
            answers.append(from_rank_zero(lambda: "a text"))
        except HydraulisError as error:
            answers.append(f"{error.code} {error.is_everywhere}")
    return acted, answers


def corpora() -> tuple[Corpus, bool, Caught | None]:
    """Return the corpus, whether this rank loaded it itself, and how a corpus that is refused arrives."""
    calls = []

    def load(_alive: Callable[[], None]) -> Corpus:
        calls.append(dist.get_rank())
        return made_up_corpus(200)

    corpus = corpus_from_rank_zero(load)
    refused = None
    try:
        corpus_from_rank_zero(lambda _: _raise(InvalidInputError("no document", code="corpus_empty")))  # type: ignore[arg-type,return-value]
    except HydraulisError as error:
        refused = describe(error)
    return corpus, bool(calls), refused


def describe(error: HydraulisError) -> Caught:
    return type(error).__name__, error.code, str(error)


def _raise(error: HydraulisError) -> str:
    raise error


def _refuse(error: Exception) -> None:
    raise error


def any_other_failure() -> str:
    """Fail on rank 0 in a way that has no code; say what was raised here."""
    try:
        from_rank_zero(lambda: str(1 // 0))
    except HydraulisError as error:
        return error.code
    except ZeroDivisionError:
        return "its own"
    return "nothing"


def is_everywhere() -> list[bool]:
    """Say of an error of rank 0, of one of rank 1 that all raise, and of a failure, if it is marked."""
    refusal = HydraulisError("refused", code="plan_broken")
    marked = []
    for fail in (
        partial(on_rank_zero, partial(_refuse, refusal)),
        partial(
            raise_everywhere, HydraulisError("torn", code="index_damaged") if dist.get_rank() == 1 else None
        ),
        partial(on_rank_zero, partial(_refuse, ZeroDivisionError())),
    ):
        try:
            fail()
        except (HydraulisError, ZeroDivisionError) as error:
            marked.append(getattr(error, "is_everywhere", False))
    return marked


def outlast_the_timeout() -> tuple[str, str]:
    """Make a text and an error that each take longer than a collective may, with signs of life."""
    setattr(rank_zero, "_HEARTBEAT_S", 0.0)  # noqa: B010
    # Public from torch 2.15 on, which warns of the old name.
    set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
    set_timeout(timedelta(seconds=0.4))

    def slow(alive: Callable[[], None]) -> str:
        for _ in range(8):
            threading.Event().wait(0.1)
            alive()
        return "slow"

    def refuse(alive: Callable[[], None]) -> str:
        alive()
        message = "too slow"
        raise HydraulisError(message, code="file_unwritable")

    text = from_living_rank_zero(slow)
    try:
        from_living_rank_zero(refuse)
    except HydraulisError as error:
        return text, str(error)
    return text, ""
