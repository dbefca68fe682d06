"""Clusters of several devices, by analytic profiles: one plan over all nodes against other uses of them.

    python benches/mixed_nodes.py --lengths FILE [--case L|HSPMD] [--batches N] [--json FILE]

Ways to use the nodes, each by a search:

- `mixed`: all nodes, by the profile of each kind (`hydraulis.planner.nodes`);
- `one rate`: all nodes, by the first kind's profile and one rate of each kind for all schemes;
- `even`: all nodes, planned as if every one were the slowest kind, which gives like replicas like work;
- one kind alone, by its own profile.

Each plan is judged by a clock that the planner does not use: a stage takes the time of its slowest rank under
the profile of that rank's own device, scheme by scheme. `judged` over `planned` is the error of the planner's
times: of pipelines on several kinds by `mixed`. Transfers between iterations are left out.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hydraulis import Cluster, CostProfile, Plan, Planner, Scheme
from hydraulis._core import Backward, Forward
from hydraulis.errors import InfeasibleError
from hydraulis.planner import load_profile, read_lengths
from hydraulis.planner.nodes import NodeKind, mix_nodes

Batch = npt.NDArray[np.int64]
MODEL = "llama-32b-a800"
CASES = {
    "L": (("A100-80GB", 2), ("H100-80GB", 2), ("H20-96GB", 4)),
    "HSPMD": (("H800-80GB", 2), ("H20-96GB", 4)),
}
"""Nodes of eight devices: a mix of three kinds, and that of arXiv 2504.20490."""
PER_NODE = 8


class OwnClock:
    """The time of a computation on a device, by the profile of that device.

    Args:
        profile: Cost profile of the device.
    """

    def __init__(self, profile: CostProfile) -> None:
        self._profile = profile
        self._entries: Mapping[str, Mapping[str, Any]] = {
            entry["scheme"]: entry for entry in json.loads(profile.to_json())["schemes"]
        }

    def forward_and_backward(self, scheme: Scheme, stage: int, lengths: Sequence[int]) -> tuple[float, float]:
        """Return the times of a micro-batch on a stage in ms; 0 without sequences."""
        if not lengths:
            return 0.0, 0.0
        entry = self._entries[str(scheme)]
        multipliers = entry.get("stage_multipliers")
        ms = self._profile.micro_batch_ms(scheme, lengths) * (multipliers[stage] if multipliers else 1.0)
        return ms * entry["forward_share"], ms * (1 - entry["forward_share"])


def judged_ms(plan: Plan, clocks: Sequence[OwnClock]) -> float:
    """Return the iteration's time by the clock of each rank.

    Args:
        plan: Plan of an iteration.
        clocks: Clock of each rank.
    """
    durations = []
    for replica in plan.replicas:
        lengths = [plan.lengths[ids].tolist() for ids in replica.micro_batches]
        stages = []
        for number, ranks in enumerate(replica.stages):
            on = {id(clocks[rank]): clocks[rank] for rank in ranks}.values()
            times = [
                [
                    max(pair)
                    for pair in zip(
                        *(one.forward_and_backward(replica.scheme, number, own) for one in on), strict=True
                    )
                ]
                for own in lengths
            ]
            stages.append([times[place][is_back] for place, is_back in _computations(plan, ranks[0])])
        durations.append(stages)
    return max(span.end_ms for spans in plan.measured_timeline(durations) for span in spans)


def _computations(plan: Plan, rank: int) -> list[tuple[int, bool]]:
    """Return the micro-batch of each computation of a rank, and whether it is a backward."""
    found = []
    for instruction in plan.instructions(rank):
        match instruction:
            case Forward(micro_batch):
                found.append((micro_batch, False))
            case Backward(micro_batch):
                found.append((micro_batch, True))
    return found


class Figures(NamedTuple):
    """Times of one way to use the nodes, in ms.

    Attributes:
        planned_ms: Mean planned time.
        judged_ms: Mean time by each rank's own profile.
        gap: Median gap between plan and bound.
        planning_ms: Median time of planning.
        strategies: Strategies of the batches.
    """

    planned_ms: float
    judged_ms: float
    gap: float
    planning_ms: float
    strategies: list[str]


def run(planner: Planner, clocks: Sequence[OwnClock], batches: Sequence[Batch]) -> Figures | None:
    """Plan and judge the batches; None if a sequence is too long for this use of the nodes."""
    plans, planning_ms = [], []
    for batch in batches:
        start = time.perf_counter()
        try:
            plans.append(planner.plan(batch))
        except InfeasibleError:
            return None
        planning_ms.append(1e3 * (time.perf_counter() - start))
    return Figures(
        planned_ms=float(np.mean([plan.iteration_ms for plan in plans])),
        judged_ms=float(np.mean([judged_ms(plan, clocks) for plan in plans])),
        gap=float(np.median([plan.gap for plan in plans])),
        planning_ms=float(np.median(planning_ms)),
        strategies=[plan.strategy for plan in plans],
    )


def compare(nodes: Sequence[tuple[str, int]], batches: Sequence[Batch]) -> dict[str, Figures | None]:
    """Plan and judge the batches by every way to use the nodes.

    Args:
        nodes: Device and number of nodes of each kind.
        batches: Lengths of each batch.
    """
    profiles = [load_profile(f"analytic:{MODEL}:{device}") for device, _ in nodes]
    kinds = [NodeKind(count, profile) for (_, count), profile in zip(nodes, profiles, strict=True)]
    reference, by_kind = profiles[0], [OwnClock(profile) for profile in profiles]
    profile, mixed = mix_nodes(reference, kinds, PER_NODE)
    clocks = [clock for clock, kind in zip(by_kind, kinds, strict=True) for _ in range(kind.nodes * PER_NODE)]
    assert mixed.rates is not None
    assert mixed.memory_bytes is not None
    slowest = Cluster(
        mixed.gpus,
        PER_NODE,
        rates=[min(mixed.rates)] * mixed.gpus,
        memory_bytes=[min(mixed.memory_bytes)] * mixed.gpus,
    )
    by_rate = Cluster(mixed.gpus, PER_NODE, rates=mixed.rates, memory_bytes=mixed.memory_bytes)
    found = {
        "mixed": run(_search(profile, mixed), clocks, batches),
        "one rate": run(_search(reference, by_rate), clocks, batches),
        "even": run(_search(reference, slowest), clocks, batches),
    }
    for clock, kind in zip(by_kind, kinds, strict=True):
        gpus = kind.nodes * PER_NODE
        alone = _search(kind.profile, Cluster(gpus, PER_NODE))
        found[kind.profile.device] = run(alone, [clock] * gpus, batches)
    return found


def _search(profile: CostProfile, cluster: Cluster) -> Planner:
    return Planner(profile, cluster, strategies="search")


def draw(lengths: Batch, tokens: int, number: int, longest: int) -> list[Batch]:
    """Cut the lengths, in their order, into batches of at least `tokens` tokens."""
    cut = np.minimum(lengths, longest)
    ends = np.searchsorted(np.cumsum(cut), tokens * np.arange(1, number + 1)) + 1
    return [batch for batch in np.split(cut[: ends[-1]], ends[:-1]) if len(batch)]


def report(found: Mapping[str, Figures | None], path: str) -> None:
    """Print a table, and write the figures where that was asked for."""
    usual = found["mixed"]
    assert usual is not None
    row = "{:<12} {:>11} {:>11} {:>7} {:>7} {:>12}  {}\n"
    titles = (
        "nodes",
        "planned ms",
        "judged ms",
        "ratio",
        "gap",
        "planning ms",
        "strategy of the first batch",
    )
    sys.stdout.write(row.format(*titles))
    for name, figures in found.items():
        if figures is None:
            sys.stdout.write(row.format(name, *"-----", "a sequence is too long"))
            continue
        ratio = f"{figures.judged_ms / usual.judged_ms:.2f}"
        ms = [f"{ms:,.0f}" for ms in (figures.planned_ms, figures.judged_ms, figures.planning_ms)]
        gap = f"{100 * figures.gap:.1f} %"
        sys.stdout.write(row.format(name, *ms[:2], ratio, gap, ms[2], figures.strategies[0]))
    if path:
        document = {name: None if one is None else one._asdict() for name, one in found.items()}
        Path(path).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """Declare the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--case", choices=CASES, default="L")
    options.add_argument("--lengths", type=Path, required=True, metavar="FILE", help="one length per line")
    options.add_argument("--tokens", type=int, default=200_000, help="of a batch")
    options.add_argument("--longest", type=int, default=32_768, help="tokens; longer sequences are cut")
    options.add_argument("--batches", type=int, default=8)
    options.add_argument("--json", default="", metavar="FILE", help="write all figures there")
    return options


def main() -> int:
    """Compare the ways to use the nodes of a case."""
    arguments = parser().parse_args()
    lengths = read_lengths(arguments.lengths)
    batches = draw(lengths, arguments.tokens, arguments.batches, arguments.longest)
    report(compare(CASES[arguments.case], batches), arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
