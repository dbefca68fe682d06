"""Longest sequences and iterations with offload of saved activations, against recomputation alone.

    python benches/offload.py [--models 13B:64xA100-80GB,7B:64xA100-40GB] [--rates 25,55]

By analytic profiles. `recompute` is a search over `none`, `selective`, `full` and the layer plans between
them; `offload` has the kind `offload` too, and the layer plans between it and each of them, with a host link
of each rate in GB/s. Host memory of a rank is that of the device's data sheet. The longest sequence is
`Planner.longest_admitted`, the times are predicted iterations in the mean over seeded batches:

- L: log-normal lengths (exp of a mean of 6.2 and a deviation of 1.2), at most 32,768, 200,000 tokens;
- V: log-normal lengths (7.0, 1.5), at most 65,536, 400,000 tokens;
- X: as V, but at most 131,072.

`-` stands for a workload whose longest sequence does not fit.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hydraulis import Cluster, CostProfile, Plan, Planner
from hydraulis.errors import InfeasibleError

Batch = npt.NDArray[np.int64]
ON_DEVICE = ("none", "selective", "full")


class Workload(NamedTuple):
    """A distribution of lengths.

    Attributes:
        mean: Mean of the logarithm.
        deviation: Standard deviation of the logarithm.
        longest: Most tokens of a sequence.
        tokens: Tokens of a batch.
    """

    mean: float
    deviation: float
    longest: int
    tokens: int

    def batches(self, number: int) -> list[Batch]:
        """Draw batches, each with at least `tokens` tokens and a sequence of the greatest length."""
        generator = np.random.default_rng(0)
        found = []
        for _ in range(number):
            drawn = generator.lognormal(self.mean, self.deviation, self.tokens // 50)
            lengths = np.clip(drawn, 1, self.longest).astype(np.int64)
            lengths[0] = self.longest
            found.append(lengths[: np.searchsorted(np.cumsum(lengths), self.tokens) + 1])
        return found


WORKLOADS = {
    "L": Workload(6.2, 1.2, 32_768, 200_000),
    "V": Workload(7.0, 1.5, 65_536, 400_000),
    "X": Workload(7.0, 1.5, 131_072, 400_000),
}


class Result(NamedTuple):
    """A search's figures.

    Attributes:
        longest: Tokens of the longest admitted sequence; 0 where no replica fits.
        iteration_ms: Mean iteration by workload, of those whose sequences fit.
        offloads: Share of the batches by workload whose plans offload.
    """

    longest: int
    iteration_ms: dict[str, float]
    offloads: dict[str, float]


def run(profile: CostProfile, cluster: Cluster, workloads: Sequence[str], number: int) -> Result:
    """Plan the batches of each workload whose longest sequence fits."""
    try:
        planner = Planner(profile, cluster, strategies="search")
    except InfeasibleError:
        return Result(0, {}, {})
    times, offloads = {}, {}
    for name in workloads:
        batches = WORKLOADS[name].batches(number)
        if max(int(batch.max()) for batch in batches) > planner.longest_admitted:
            continue
        plans = [planner.plan(batch) for batch in batches]
        times[name] = float(np.mean([plan.iteration_ms for plan in plans]))
        offloads[name] = float(np.mean([_offloads(plan) for plan in plans]))
    return Result(planner.longest_admitted, times, offloads)


def _offloads(plan: Plan) -> bool:
    return any("offload" in replica.scheme.checkpointing for replica in plan.replicas)


def compare(
    model: str, device: str, cluster: Cluster, rates: Sequence[float], options: argparse.Namespace
) -> Iterator[str]:
    """Give the lines of one model: recomputation alone, then offload at each rate."""
    shape = CostProfile.preset(f"llama-{model.lower()}-a800").model
    assert shape is not None, "every preset states its model"
    names, count = options.workloads.split(","), options.batches
    place = f"{model}, {cluster.gpus} x {device}"

    def line(name: str, result: Result, usual: Result | None) -> str:
        cells = []
        for workload in names:
            if workload not in result.iteration_ms:
                cells.append("-")
                continue
            ms = result.iteration_ms[workload]
            known = None if usual is None else usual.iteration_ms.get(workload)
            change = "" if known is None else f" ({ms / known - 1:+.1%})"
            cells.append(f"{ms:,.1f}{change}")
        return f"| {place} | {name} | {result.longest:,} | {' | '.join(cells)} |\n"

    plain = CostProfile.analytic(shape, cluster, device, checkpointing=ON_DEVICE)
    usual = run(plain.with_layer_plans(options.layer_plans), cluster, names, count)
    yield line("recompute", usual, None)
    for rate in rates:
        kinds = (*ON_DEVICE, "offload")
        profile = CostProfile.analytic(
            shape, cluster, device, checkpointing=kinds, host_gigabytes_per_s=rate
        ).with_layer_plans(options.layer_plans)
        yield line(f"offload, {rate:g} GB/s", run(profile, cluster, names, count), usual)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="13B:64xA100-80GB,7B:64xA100-40GB")
    parser.add_argument("--rates", default="25,55", help="GB/s of the host link")
    parser.add_argument("--workloads", default="L,V,X")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--layer-plans", type=int, default=1, help="between each two kinds")
    options = parser.parse_args()
    names = options.workloads.split(",")
    sys.stdout.write(f"| model | search | longest | {' | '.join(f'{name}, ms' for name in names)} |\n")
    sys.stdout.write(f"|---|---|---{'|---' * len(names)}|\n")
    for text in options.models.split(","):
        model, _, place = text.partition(":")
        gpus, _, device = place.partition("x")
        cluster = Cluster(gpus=int(gpus), gpus_per_node=8)
        rates = [float(rate) for rate in options.rates.split(",")]
        for row in compare(model, device, cluster, rates, options):
            sys.stdout.write(row)
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
