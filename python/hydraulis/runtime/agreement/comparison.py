"""Refuses a run whose ranks differ in something that must be the same on all of them."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from hydraulis.errors import InvalidInputError
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.every_rank import everywhere
from hydraulis.text.values import as_toml, name_ranks

# Ranks that a message lists for each value.
_MAX_LISTED = 4
_ABSENT = "absent"


def digest_of(*parts: bytes) -> int:
    """Return 63 bits of a digest of the parts, which fit a signed 64-bit integer."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little") >> 1


def check_same(facts: Mapping[str, object], remedy: str) -> None:
    """Check that all ranks have the same facts. Collective.

    Equal facts cost one all-reduce of two numbers.

    Args:
        facts: JSON values by name; the first difference in this order is reported.
        remedy: End of the message.

    Raises:
        InvalidInputError: A fact differs (code `ranks_differ`); on every rank.
    """
    digest = digest_of(json.dumps(facts).encode())
    largest = torch.tensor([digest, -digest])
    host.all_reduce(largest, dist.ReduceOp.MAX)
    if int(largest[0]) == -int(largest[1]):
        return
    gathered = host.all_gather_objects(facts)
    message = f"the ranks differ: {describe_difference(dict(enumerate(gathered)))}; {remedy}"
    raise everywhere(InvalidInputError(message, code="ranks_differ"))


def describe_difference(by_rank: Mapping[int, Mapping[str, object]]) -> str:
    """Describe the first fact that differs: `train.seed is 1 on rank 3, and 0 on ranks 0, 1, 2`."""
    for name in dict.fromkeys(name for facts in by_rank.values() for name in facts):
        ranks: defaultdict[str, list[int]] = defaultdict(list)
        for rank, facts in by_rank.items():
            ranks[as_toml(facts[name]) if name in facts else _ABSENT].append(rank)
        if len(ranks) > 1:
            rarest_first = sorted(ranks.items(), key=lambda item: len(item[1]))
            return f"{name} is " + ", and ".join(f"{value} on {_listed(of)}" for value, of in rarest_first)
    return "the order of their settings"


def _listed(ranks: Sequence[int]) -> str:
    others = f" and {len(ranks) - _MAX_LISTED} others" if len(ranks) > _MAX_LISTED else ""
    return f"{name_ranks(ranks[:_MAX_LISTED])}{others}"
