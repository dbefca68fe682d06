"""Rank 0 plans, and every rank gets the same bytes: the plan, or the error that stopped it."""

import json
from collections.abc import Callable

import torch
import torch.distributed as dist

from hydraulis import errors
from hydraulis._core import Plan


def share_plan(make: Callable[[], Plan] | None) -> Plan:
    """Make the plan on rank 0 and send it to all. Collective.

    Args:
        make: on rank 0; None elsewhere.

    Raises:
        HydraulisError: what `make` raised, on every rank, so that none waits for a plan that never comes.
    """
    message = json.loads(share_text(None if make is None else _reply(make)))
    if "error" in message:
        raise getattr(errors, message["error"])(message["message"], code=message["code"])
    return Plan.from_json(message["plan"])


def share_text(text: str | None) -> str:
    """Send a text from rank 0 to all. Collective.

    Args:
        text: on rank 0; None elsewhere.
    """
    sent = torch.tensor(bytearray((text or "").encode()), dtype=torch.uint8)
    length = torch.tensor(sent.numel())
    dist.broadcast(length, src=0)
    received = sent if text is not None else torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(received, src=0)
    return received.numpy().tobytes().decode()


def _reply(make: Callable[[], Plan]) -> str:
    try:
        return json.dumps({"plan": make().to_json()})
    except errors.HydraulisError as error:
        name = type(error).__name__
        return json.dumps({"error": name, "message": str(error), "code": error.code})
