"""What sharded gradients give, by analytic profiles: steps and longest sequences against whole gradients.

    python benches/sharded_gradients.py --lengths FILE [--model MODEL] [--device DEVICE] [--link GB_PER_S]

Both are searches with a link, each under the profile for its kind of gradients. Their steps are those of the
planner, which counts the transfers of every round.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hydraulis import Cluster, CostProfile, Plan, Planner
from hydraulis._core import Link, LinkRates
from hydraulis.errors import InfeasibleError
from hydraulis.planner import load_profile, read_lengths

PER_NODE = 8


class Planned(NamedTuple):
    """A batch planned under one kind of gradients.

    Attributes:
        plan: The plan; None if no strategy admits the batch.
        longest: Tokens of the longest sequence that a strategy admits.
    """

    plan: Plan | None
    longest: int

    def __str__(self) -> str:
        if self.plan is None:
            return f"no plan, longest admitted {self.longest:,} tokens"
        most = max(len(replica.micro_batches) for replica in self.plan.replicas)
        return (
            f"iteration {self.plan.iteration_ms:8.1f} ms, step {self.plan.step_ms:8.1f} ms, at most {most} "
            f"micro-batches, longest admitted {self.longest:,} tokens, {self.plan.strategy}"
        )


def by_kind(profile: CostProfile) -> dict[str, CostProfile]:
    """Return the profile for each kind of gradients."""
    return {"whole": profile, "sharded": profile.with_sharded_gradients()}


def planned(profile: CostProfile, batch: npt.NDArray[np.int64], cluster: Cluster, rate: float) -> Planned:
    """Search a plan of a batch, with links of this rate of a node in 1e9 bytes per second."""
    link = Link.of_profile(profile, LinkRates(gigabytes_per_s=rate))
    planner = Planner(profile, cluster, strategies="search", link=link)
    try:
        return Planned(planner.plan(batch), planner.longest_admitted)
    except InfeasibleError:
        return Planned(None, planner.longest_admitted)


def summary(results: dict[str, list[Planned]]) -> Iterator[str]:
    """Yield the mean iteration and step of each kind over the batches that both plan, and the change."""
    pairs = [
        (whole.plan, sharded.plan)
        for whole, sharded in zip(results["whole"], results["sharded"], strict=True)
        if whole.plan is not None and sharded.plan is not None
    ]
    if not pairs:
        return
    for place, name in enumerate(results):
        plans = [pair[place] for pair in pairs]
        iteration, step = (
            float(np.mean([getattr(plan, field) for plan in plans])) for field in ("iteration_ms", "step_ms")
        )
        yield f"{name:8} mean iteration {iteration:8.1f} ms, step {step:8.1f} ms"
    whole_ms, sharded_ms, best_ms = (
        float(np.mean(steps))
        for steps in zip(*((a.step_ms, b.step_ms, min(a.step_ms, b.step_ms)) for a, b in pairs), strict=True)
    )
    yield f"change {sharded_ms / whole_ms - 1:+.1%}, shorter of both {best_ms / whole_ms - 1:+.1%}"


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
    """Compare both kinds on each batch."""
    arguments = parser().parse_args()
    profiles = by_kind(load_profile(f"analytic:{arguments.model}:{arguments.device}"))
    cluster = Cluster(gpus=arguments.gpus, gpus_per_node=PER_NODE)
    lengths = read_lengths(arguments.lengths)
    starts = np.unique(np.cumsum(lengths) // arguments.tokens, return_index=True)[1]
    results: dict[str, list[Planned]] = {name: [] for name in profiles}
    for batch in np.split(lengths, starts[1:])[: arguments.batches]:
        for name, profile in profiles.items():
            results[name].append(planned(profile, batch, cluster, arguments.link))
            sys.stdout.write(f"{name:8} {results[name][-1]}\n")
    for line in summary(results):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
