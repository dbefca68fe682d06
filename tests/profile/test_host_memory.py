"""Host memory of a rank: stated or a part of the node's, and only where layers offload."""

import torch

from hydraulis.profile.host_memory import copy_rate, host_memory
from ranks import run_ranks
from runtime.tiny import make_worker


def figures() -> tuple[dict[str, float], dict[str, float], dict[str, float], float]:
    plain, offloading = make_worker(["1x<1>"]), make_worker(["1x<1,offload>"])
    found = [dict(host_memory(worker, stated)) for worker, stated in ((plain, 7), (offloading, 7))]
    return (*found, dict(host_memory(offloading, None)), copy_rate(torch.device("cpu"), 1 << 16))  # type: ignore[return-value]


def test_only_schemes_that_offload_have_host_memory() -> None:
    first, second = run_ranks(2, figures)
    plain, stated, measured, rate = first
    assert plain == {}
    # On the CPU copies are a part of computation, so there is no rate.
    assert stated == {"host_memory_bytes": 7}
    assert measured.keys() == {"host_memory_bytes"}
    assert measured["host_memory_bytes"] == second[2]["host_memory_bytes"] > 1 << 20
    assert rate > 0
