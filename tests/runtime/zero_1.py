"""The bytes that ZeRO-1 sends, for comparison."""

import torch

from hydraulis import Strategy
from runtime.worker_workers import Step


def assert_sends_bytes_of_zero_1(step: Step) -> None:
    """Compare with ZeRO-1, where D replicas scatter gradients and gather parameters among each other.

    That is D - 1 models each way, of any tensor and pipeline degree. The optimizer shards are the same for
    all strategies of the run, so a rank's shard is not always a part of its local shard: then up to one model
    more moves, and norms once for each tensor rank.
    """
    ((count, scheme),) = (part.split("x", 1) for part in step.strategy.split("+"))
    replicas, tp = int(count), Strategy(f"1x{scheme}").schemes[0].tp
    whole = sum(value.numel() for value in step.gradients.values())
    norms = sum(value.numel() for name, value in step.gradients.items() if "norm" in name)
    both_ways = 2 * torch.float64.itemsize
    sent, crossing = step.sent_bytes
    assert crossing == 0
    assert (replicas - 1) * whole <= sent / both_ways <= replicas * (whole + (tp - 1) * norms)
    if scheme == "<1>":
        assert sent == both_ways * (replicas - 1) * whole


def assert_sends_bytes_of_replica_groups(steps: list[Step]) -> None:
    """All ranks of a replica group but the owner send an element and get it back, as in ZeRO-1."""
    for step in steps:
        assert step.idle_ranks == 0
        sizes = {name: value.numel() for name, value in step.gradients.items()}
        norms = sum(size for name, size in sizes.items() if "norm" in name)
        local = 0
        for scheme in Strategy(step.strategy).schemes:
            embedding = sizes["embed_tokens.weight"] if scheme.pp > 1 else 0
            local += scheme.cp * (sum(sizes.values()) + (scheme.tp - 1) * norms + embedding)
        assert sum(step.sent_bytes) == 2 * torch.float64.itemsize * (local - sum(sizes.values()))
