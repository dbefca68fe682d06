"""What rank 0 reads, decides or refuses reaches every rank: as the same bytes, or as the same error."""

import json
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import errors
from hydraulis.data.corpus import Corpus


def from_rank_zero(make: Callable[[], str]) -> str:
    """Call `make` on rank 0 alone, and give its text to all. Collective.

    Raises:
        HydraulisError: what `make` raised, on every rank, so that none waits for what never comes. Anything
            else that it raised is raised on rank 0, and on the others as code `rank_zero_failed`.
    """
    reply: dict[str, str]
    reply, failure = _reply(make) if dist.get_rank() == 0 else ({}, None)
    sent = torch.tensor(bytearray(json.dumps(reply).encode()), dtype=torch.uint8)
    length = torch.tensor(sent.numel())
    dist.broadcast(length, src=0)
    received = sent if dist.get_rank() == 0 else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(received, src=0)
    if failure is not None:
        raise failure
    reply = json.loads(received.numpy().tobytes())
    if "error" in reply:
        raise getattr(errors, reply["error"])(reply["message"], code=reply["code"])
    return reply["text"]


def on_rank_zero(act: Callable[[], None]) -> None:
    """Call `act` on rank 0 alone; its error reaches every rank as with `from_rank_zero`. Collective."""

    def make() -> str:
        act()
        return ""

    from_rank_zero(make)


def corpus_from_rank_zero(load: Callable[[], Corpus]) -> Corpus:
    """Load a corpus on rank 0, and give it to all. Collective.

    Raises:
        HydraulisError: what `load` raised, on every rank.
    """
    loaded: list[Corpus] = []

    def counts() -> str:
        corpus = load()
        loaded.append(corpus)
        return json.dumps([len(corpus.token_T), len(corpus.offset), corpus.num_cut, corpus.num_skipped_files])

    num_tokens, num_offsets, num_cut, num_skipped_files = json.loads(from_rank_zero(counts))
    token_T = _shared(loaded[0].token_T if loaded else None, num_tokens, torch.uint8)
    offset = _shared(loaded[0].offset if loaded else None, num_offsets, torch.int64)
    return Corpus(
        token_T=token_T.numpy(), offset=offset.numpy(), num_cut=num_cut, num_skipped_files=num_skipped_files
    )


def _reply(make: Callable[[], str]) -> tuple[dict[str, str], Exception | None]:
    try:
        return {"text": make()}, None
    except errors.HydraulisError as error:
        return {"error": type(error).__name__, "message": str(error), "code": error.code}, error
    except Exception as error:
        refused = errors.HydraulisError(
            f"rank 0 failed: {error!r}; see its traceback", code="rank_zero_failed"
        )
        return {"error": "HydraulisError", "message": str(refused), "code": refused.code}, error


def _shared(array: npt.NDArray[Any] | None, elements: int, dtype: torch.dtype) -> Tensor:
    # Copied, because torch takes no read-only array.
    shared = torch.empty(elements, dtype=dtype) if array is None else torch.tensor(array)
    dist.broadcast(shared, src=0)
    return shared
