"""What sharded gradients and parameters give, by analytic profiles: steps and longest sequences.

    python benches/sharding.py --lengths FILE [--model MODEL] [--device DEVICE] [--link RATE] [--floor]
                               [--adapters RANK]

Each is a search with a link, under the profile for its kind of sharding. Steps are those of the planner,
which counts the transfers of every round. `--floor` adds a search with memory for everything: no decision
about memory makes iterations shorter than its bounds. `--adapters` freezes the model, one of
`hydraulis.planner.models.MODELS`, and trains adapters on all its linear maps.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from hydraulis import Cluster, CostProfile, Plan, Planner, Scheme
from hydraulis._core import Link, LinkRates
from hydraulis.config.hugging_face.read import from_hugging_face
from hydraulis.config.kinds import ShardingKind
from hydraulis.config.lora import TARGETS, Adapters
from hydraulis.errors import InfeasibleError
from hydraulis.planner import load_profile, read_lengths
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.planner.models import MODELS
from hydraulis.planner.profile_document import with_schemes

PER_NODE = 8
AMPLE_BYTES = 10**13


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
            f"iteration {self.plan.iteration_ms:8.1f} ms (bound {self.plan.lower_bound_ms:8.1f}), step "
            f"{self.plan.step_ms:8.1f} ms, at most {most} "
            f"micro-batches, longest admitted {self.longest:,} tokens, {self.plan.strategy}"
        )


def by_kind(profile: CostProfile) -> dict[str, CostProfile]:
    """Return the profile for each kind of sharding."""
    return {kind: profile.with_sharding(kind) for kind in get_args(ShardingKind)}


def with_adapters(model: str, device: str, rank: int) -> CostProfile:
    """Predict the profile of adapters on all linear maps of a model, for `DEVICE[,KIND...]`."""
    adapters = Adapters(rank=rank, alpha=2.0 * rank, targets=TARGETS)
    shape = build_model_shape(replace(from_hugging_face(MODELS[model]), adapters=adapters))
    name, *kinds = device.split(",")
    return CostProfile.analytic(shape, Cluster(256, PER_NODE), name, checkpointing=kinds or None)


def with_ample_memory(profile: CostProfile, cluster: Cluster) -> tuple[CostProfile, Cluster]:
    """Return the profile's schemes without checkpointing, and a cluster with memory for everything."""
    kept = [scheme for scheme in map(Scheme, profile.schemes) if scheme.checkpointing == "none"]
    ample = Cluster(cluster.gpus, cluster.gpus_per_node, memory_bytes=[AMPLE_BYTES] * cluster.gpus)
    return with_schemes(profile, kept), ample


def planned(
    profile: CostProfile, batch: npt.NDArray[np.int64], cluster: Cluster, rate: float | None
) -> Planned:
    """Search a plan of a batch, with links of this rate of a node in 1e9 bytes per second.

    Without a rate transfers do not count, so that the bound is on iterations under every kind of sharding.
    """
    link = None if rate is None else Link.of_profile(profile, LinkRates(gigabytes_per_s=rate))
    longest = 0
    try:
        planner = Planner(profile, cluster, strategies="search", link=link)
        longest = planner.longest_admitted
        return Planned(planner.plan(batch), longest)
    except InfeasibleError:
        return Planned(None, longest)


def summary(results: dict[str, list[Planned]]) -> Iterator[str]:
    """Yield the mean iteration and step of each search over the batches that all plan, and the changes.

    Args:
        results: Results of every batch, by the name of the search; `none` for comparison, perhaps `floor`.
    """
    plans = {name: [one.plan for one in row] for name, row in results.items()}
    common = [
        place
        for place, of_batch in enumerate(zip(*plans.values(), strict=True))
        if all(plan is not None for plan in of_batch)
    ]
    if not common:
        return

    def mean(name: str, field: str) -> float:
        return float(np.mean([getattr(plans[name][place], field) for place in common]))

    for name in results:
        change = mean(name, "step_ms") / mean("none", "step_ms") - 1
        iteration, step = mean(name, "iteration_ms"), mean(name, "step_ms")
        yield f"{name:10} mean iteration {iteration:8.1f} ms, step {step:8.1f} ms, {change:+.1%}"
    if "floor" in results:
        bound = mean("floor", "lower_bound_ms")
        change = bound / mean("none", "iteration_ms") - 1
        yield f"no iteration is below {bound:.1f} ms in the mean, {change:+.1%}"


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
    options.add_argument("--floor", action="store_true", help="add a search with memory for everything")
    options.add_argument("--adapters", type=int, metavar="RANK", help="freeze the model, and train adapters")
    return options


def main() -> int:
    """Compare the searches on each batch."""
    options = parser()
    arguments = options.parse_args()
    if arguments.adapters and arguments.model not in MODELS:
        options.error(f"--adapters needs --model, one of {', '.join(MODELS)}")
    if arguments.adapters:
        profile = with_adapters(arguments.model, arguments.device, arguments.adapters)
    else:
        profile = load_profile(f"analytic:{arguments.model}:{arguments.device}")
    cluster = Cluster(gpus=arguments.gpus, gpus_per_node=PER_NODE)
    searches = {name: (of_kind, cluster) for name, of_kind in by_kind(profile).items()}
    if arguments.floor:
        searches["floor"] = with_ample_memory(profile, cluster)
    lengths = read_lengths(arguments.lengths)
    starts = np.unique(np.cumsum(lengths) // arguments.tokens, return_index=True)[1]
    results: dict[str, list[Planned]] = {name: [] for name in searches}
    for batch in np.split(lengths, starts[1:])[: arguments.batches]:
        for name, (of_search, on) in searches.items():
            rate = None if name == "floor" else arguments.link
            results[name].append(planned(of_search, batch, on, rate))
            sys.stdout.write(f"{name:10} {results[name][-1]}\n")
    for line in summary(results):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
