"""What gradients without a whole buffer would give, by analytic profiles, and the time of their transfers.

    python benches/sharded_gradients.py --lengths FILE [--model MODEL] [--device DEVICE] [--link GB_PER_S]

`whole` is a search under the profile. `sharded` is one over its schemes without stages, less the gradient
buffer, of which two buckets stay; gradients leave for their owners after each micro-batch.

All ranks exchange buckets in one order: in rounds, one for each micro-batch of the replica that has most,
from the last bucket to the first. A replica's micro-batches take part in the last rounds, and a rank that has
none in a round contributes nothing. A backward waits for the memory of the bucket before the last.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hydraulis import Cluster, CostProfile, Plan, Planner, Scheme
from hydraulis._core import Link, LinkRates
from hydraulis.errors import InfeasibleError
from hydraulis.planner import load_profile, read_lengths

BUFFERED = 2
"""Buckets of gradients that a rank holds where they leave after each micro-batch."""
GRADIENT, PARAMETER = 4, 2
PER_NODE = 8
MESSAGE_MS = 0.01
GPU_GIGABYTES_PER_S = 200.0
FORWARD = 1 / 3


def buckets(profile: CostProfile) -> list[int]:
    """Return the elements of each layer group: the embedding, each layer, and the head."""
    model = json.loads(profile.to_json())["model"]
    sizes = {"embedding": 0, "layer": 0, "head": 0}
    for parameter in model["parameters"]:
        sizes[parameter["parts"][0]] += parameter["rows"] * parameter["row_elements"]
    return [sizes["embedding"], *[sizes["layer"]] * model["num_hidden_layers"], sizes["head"]]


def sharded(profile: CostProfile) -> CostProfile:
    """Return the profile's schemes without stages, with two buckets in place of the gradient buffer."""
    document: dict[str, Any] = json.loads(profile.to_json())
    sizes = buckets(profile)
    document["schemes"] = [one for one in document["schemes"] if Scheme(one["scheme"]).pp == 1]
    for entry in document["schemes"]:
        saved = max(0, sum(sizes) - BUFFERED * max(sizes))
        entry["resident_bytes"] -= GRADIENT * saved // Scheme(entry["scheme"]).tp
    return CostProfile.from_json(json.dumps(document))


def transfer_ms(elements: int, bytes_each: int, cluster: Cluster, narrowest: int, rate: float) -> float:
    """Return the time of a bucket one way, as in docs/cost-model.md: every node holds all of it."""
    ranks, nodes = cluster.gpus, -(-cluster.gpus // PER_NODE)
    node = elements * (nodes - 1) / nodes / rate
    rank = elements / narrowest * (ranks - 1) / ranks / GPU_GIGABYTES_PER_S
    return (min(ranks, PER_NODE) + nodes - 2) * MESSAGE_MS + bytes_each * max(node, rank) / 1e6


def step(
    replicas: Sequence[Sequence[float]],
    gathers: Sequence[float],
    reductions: Sequence[float],
    *,
    is_sharded: bool,
) -> float:
    """Return the time of a step in ms, from updated parameters at their owners to all gradients there.

    Args:
        replicas: Times of each replica's micro-batches in ms, forward and backward.
        gathers: Time to gather each bucket's parameters.
        reductions: Time to reduce each bucket's gradients once.
        is_sharded: Whether gradients leave after each micro-batch, through two buckets, or once.
    """
    count = len(reductions)
    arrived = list(accumulate(gathers))
    clocks = [
        max(arrived[k] + FORWARD * times[0] * (count - k) / count for k in range(count)) for times in replicas
    ]
    rounds = max(map(len, replicas))
    done = 0.0
    for number in range(rounds):
        working = [i for i, times in enumerate(replicas) if number >= rounds - len(times)]
        of_round = {i: replicas[i][number - rounds + len(replicas[i])] for i in working}
        for i in working:
            if number > rounds - len(replicas[i]):
                clocks[i] += FORWARD * of_round[i]
        leaves = is_sharded or number == rounds - 1
        recent = [done] * BUFFERED
        for bucket in reversed(range(count)):
            for i in working:
                free = recent[-BUFFERED] if is_sharded else -math.inf
                clocks[i] = max(clocks[i], free) + (1 - FORWARD) * of_round[i] / count
            if leaves:
                done = max(done, *(clocks[i] for i in working)) + reductions[bucket]
                recent.append(done)
    return max(done, *clocks)


def step_of(
    plan: Plan, profile: CostProfile, lengths: npt.NDArray[np.int64], rate: float, *, is_sharded: bool
) -> float:
    """Return the time of a plan's step in ms."""
    narrowest = min(replica.scheme.tp for replica in plan.replicas)
    sizes = buckets(profile)
    gathers, reductions = (
        [transfer_ms(size, width, plan.cluster, narrowest, rate) for size in sizes]
        for width in (PARAMETER, GRADIENT)
    )
    times = [
        [
            profile.micro_batch_ms(replica.scheme, lengths[ids].tolist())
            for ids in replica.micro_batches
            if ids
        ]
        for replica in plan.replicas
    ]
    return step([one for one in times if one], gathers, reductions, is_sharded=is_sharded)


def compare(
    profile: CostProfile, batch: npt.NDArray[np.int64], cluster: Cluster, rate: float
) -> Iterator[str]:
    """Yield a line for each way to hold gradients."""
    for name, used in (("whole", profile), ("sharded", sharded(profile))):
        link = Link.of_profile(used, LinkRates(gigabytes_per_s=rate))
        planner = Planner(used, cluster, strategies="search", link=link)
        try:
            plan = planner.plan(batch)
        except InfeasibleError as error:
            yield f"{name:8} {error}"
            continue
        is_sharded = name == "sharded"
        step_ms = step_of(plan, used, batch, rate, is_sharded=True) if is_sharded else plan.step_ms
        most = max(len(replica.micro_batches) for replica in plan.replicas)
        yield (
            f"{name:8} iteration {plan.iteration_ms:8.1f} ms, step {step_ms:8.1f} ms, at most {most} "
            f"micro-batches, longest admitted {planner.longest_admitted:,} tokens, {plan.strategy}"
        )


def parser() -> argparse.ArgumentParser:
    """Declare the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lengths", type=Path, required=True, metavar="FILE", help="one length per line")
    options.add_argument("--model", default="llama-13b-a800")
    options.add_argument("--device", default="A100-80GB")
    options.add_argument("--gpus", type=int, default=64)
    options.add_argument("--tokens", type=int, default=200_000, help="of a batch")
    options.add_argument("--batches", type=int, default=2)
    options.add_argument("--link", type=float, default=200.0, help="rate of a node in 1e9 bytes per second")
    return options


def main() -> int:
    """Compare both ways on each batch."""
    arguments = parser().parse_args()
    profile = load_profile(f"analytic:{arguments.model}:{arguments.device}")
    cluster = Cluster(gpus=arguments.gpus, gpus_per_node=PER_NODE)
    lengths = read_lengths(arguments.lengths)
    starts = np.unique(np.cumsum(lengths) // arguments.tokens, return_index=True)[1]
    for batch in np.split(lengths, starts[1:])[: arguments.batches]:
        for line in compare(profile, batch, cluster, arguments.link):
            sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
