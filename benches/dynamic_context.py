"""What context degrees for each micro-batch would give, after context degrees for each replica.

    python -m benches.dynamic_context --lengths FILE|lognormal:MEAN,DEVIATION [--profile NAME] [--gpus N]

All context ranks of a replica hold the same parameters. So the ranks could run some micro-batches together,
then as two halves with half the context degree each, and so on: Megatron-core's dynamic context parallelism.
A block is an aligned part of the ranks with its own list of micro-batches; it runs them before its halves
run theirs, and ends with the later half.

The estimate starts from the plan that a search finds with context degrees. Its replicas without stages become
blocks, together for each tensor degree; its pipelines keep their sequences but for the shortest, whose work
the blocks take to end with them. A second estimate makes all ranks blocks of one tensor degree. Sequences are
placed longest first, each where it takes the least rank time, idle ranks included, so that all blocks end
within a limit; bisection finds the least limit. The estimate is the shortest of these and the plan itself.

The blocks' times and caps are exact for the profile; a pipeline's time is taken as proportional to its work.
A better packing may gain more. `fixed` places in the same way without cutting replicas, to show what the
placement loses.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from benches.context_degrees import Batch, drawn

from hydraulis import Cluster, CostProfile, Plan, Planner, Scheme
from hydraulis.errors import InfeasibleError
from hydraulis.planner import load_profile

STEP = 1.001
"""Factor between two limits on the time that are not told apart."""
RANGE = 0.2
"""Part of the plan's time below and above it in which a limit is sought."""


@dataclass(slots=True)
class Costs:
    """A scheme's milliseconds per squared token, per token and per micro-batch, and its cap in tokens."""

    quadratic: float
    linear: float
    fixed: float
    cap: int

    @classmethod
    def of(cls, profile: CostProfile, scheme: Scheme, cluster: Cluster) -> "Costs | None":
        """Read them from a profile; None if it lacks the scheme or the weights do not fit."""
        if str(scheme) not in profile.schemes:
            return None
        try:
            cap = profile.cap_tokens(scheme, cluster)
        except InfeasibleError:
            return None

        def alone(tokens: int) -> float:
            # A second equal sequence costs no further micro-batch.
            return profile.micro_batch_ms(scheme, [tokens] * 2) - profile.micro_batch_ms(scheme, [tokens])

        far = 1000
        quadratic = (alone(far) - far * alone(1)) / (far**2 - far)
        fixed = profile.micro_batch_ms(scheme, [1]) - alone(1)
        return cls(quadratic, alone(1) - quadratic, fixed, cap)

    def sequence_ms(self, tokens: int) -> float:
        """Return a sequence's time without that of its micro-batch."""
        return (self.quadratic * tokens + self.linear) * tokens


@dataclass(slots=True)
class Block:
    """Aligned context ranks that run micro-batches together.

    Attributes:
        first: Its first context rank, counted over all blocks of its tensor degree.
        degree: Number of its context ranks.
        tp: Tensor degree.
        costs: Costs of its scheme.
        micro_batches: Lengths of the sequences of each micro-batch.
        tokens: Tokens of each micro-batch.
    """

    first: int
    degree: int
    tp: int
    costs: Costs
    micro_batches: list[list[int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def ms(self) -> float:
        """Time of its own micro-batches."""
        sequences = sum(self.costs.sequence_ms(tokens) for packed in self.micro_batches for tokens in packed)
        return sequences + self.costs.fixed * len(self.micro_batches)

    def find_room(self, tokens: int) -> int | None:
        """Return the fullest micro-batch with room for as many tokens."""
        most = self.costs.cap - tokens
        fitting = [index for index, used in enumerate(self.tokens) if used <= most]
        return max(fitting, key=self.tokens.__getitem__, default=None)

    def append(self, tokens: int) -> None:
        """Add a sequence, to a micro-batch with room or as a new one."""
        room = self.find_room(tokens)
        if room is None:
            self.micro_batches.append([tokens])
            self.tokens.append(tokens)
        else:
            self.micro_batches[room].append(tokens)
            self.tokens[room] += tokens


def tree(profile: CostProfile, cluster: Cluster, tp: int, first: int, ranks: int) -> Iterator[Block]:
    """Yield the block of a power of two of context ranks, its halves, theirs and so on."""
    degree = ranks
    while degree >= 1:
        costs = Costs.of(profile, Scheme(f"<tp{tp},cp{degree}>" if tp * degree > 1 else "<1>"), cluster)
        if costs is not None:
            starts = range(first, first + ranks, degree)
            yield from (Block(start, degree, tp, costs) for start in starts)
        degree //= 2


def place(lengths: Sequence[int], blocks: Sequence[Block], limit_ms: float) -> bool:
    """Place sequences, longest first, so that all blocks end within a limit; False if they do not fit."""
    ends = {
        tp: np.zeros(max(b.first + b.degree for b in blocks if b.tp == tp)) for tp in {b.tp for b in blocks}
    }
    for block in blocks:
        block.micro_batches, block.tokens = [], []
    for tokens in sorted(lengths, reverse=True):
        best: tuple[tuple[float, float], Block, float] | None = None
        for block in blocks:
            if tokens > block.costs.cap:
                continue
            own = ends[block.tp][block.first : block.first + block.degree]
            start = float(own.max())
            ms = block.costs.sequence_ms(tokens)
            if start + ms > limit_ms:
                continue
            ms += 0.0 if block.find_room(tokens) is not None else block.costs.fixed
            if start + ms > limit_ms:
                continue
            # Rank time: the sequence's, and that of ranks that wait for the last of the block.
            key = (block.tp * (ms * block.degree + start * block.degree - float(own.sum())), -start)
            if best is None or key < best[0]:
                best = (key, block, start + ms)
        if best is None:
            return False
        _, block, end = best
        ends[block.tp][block.first : block.first + block.degree] = end
        block.append(tokens)
    return True


def shortest_ms(fits: Callable[[float], bool], around_ms: float) -> float:
    """Return the least limit that fits, by bisection; infinite if none around the given time does."""
    low, high = around_ms * (1 - RANGE), around_ms * (1 + RANGE)
    if not fits(high):
        return float("inf")
    while high / low > STEP:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


class Regrouping:
    """A plan's replicas without stages as blocks, and its pipelines with a part of their sequences.

    Args:
        profile: Costs.
        batch: Tokens of each sequence.
        plan: Plan of the batch.
        cuts: Whether ranks of several replicas form blocks together, and blocks have halves.
    """

    def __init__(self, profile: CostProfile, batch: Batch, plan: Plan, *, cuts: bool) -> None:
        self.lengths: list[int] = []
        self.pipelines: list[list[int]] = []
        self._pipeline_ms: list[float] = []
        self.blocks: list[Block] = []
        self._profile, self._plan_ms = profile, plan.iteration_ms
        degrees: dict[int, list[int]] = {}
        self._costs: list[Costs] = []
        for replica in plan.replicas:
            own = sorted(int(batch[sequence]) for packed in replica.micro_batches for sequence in packed)
            costs = Costs.of(profile, replica.scheme, plan.cluster)
            assert costs is not None
            if replica.scheme.pp > 1:
                self.pipelines.append(own)
                self._pipeline_ms.append(replica.predicted_ms)
                self._costs.append(costs)
            else:
                self.lengths += own
                degrees.setdefault(replica.scheme.tp, []).append(replica.scheme.cp)
        for tp, each in degrees.items():
            first = 0
            for ranks in powers_of_two(sum(each)) if cuts else sorted(each, reverse=True):
                found = list(tree(profile, plan.cluster, tp, first, ranks))
                self.blocks += found if cuts else [block for block in found if block.degree == ranks]
                first += ranks

    def ms(self) -> float:
        """Return the estimated time; infinite if the plan has pipelines alone or nothing fits."""
        return shortest_ms(self._fits, self._plan_ms) if self.blocks else float("inf")

    def _fits(self, limit_ms: float) -> bool:
        freed = []
        for lengths, costs, ms in zip(self.pipelines, self._costs, self._pipeline_ms, strict=True):
            work = np.cumsum([costs.sequence_ms(tokens) for tokens in lengths])
            surplus = float(work[-1]) * (1 - limit_ms / ms)
            freed += lengths[: int(np.searchsorted(work, surplus)) + 1] if surplus > 0 else []
        return place(self.lengths + freed, self.blocks, limit_ms)


def powers_of_two(number: int) -> list[int]:
    """Return the powers of two that add up to a number, the greatest first."""
    return [1 << bit for bit in reversed(range(number.bit_length())) if number >> bit & 1]


def whole_ms(profile: CostProfile, batch: Batch, plan: Plan) -> float:
    """Return the shortest time of all ranks as blocks of one tensor degree."""
    best = float("inf")
    for tp in (1, 2, 4, 8, 16):
        ranks = 1 << (plan.cluster.gpus // tp).bit_length() - 1
        blocks = list(tree(profile, plan.cluster, tp, 0, ranks))
        if blocks:
            best = min(best, shortest_ms(partial(place, batch.tolist(), blocks), plan.iteration_ms))
    return best


def estimate(profile: CostProfile, cluster: Cluster, batch: Batch) -> dict[str, float]:
    """Return the times of a batch by a plan, by its placement again, and with blocks."""
    plan = Planner(profile, cluster, strategies="search").plan(batch)
    again, blocks = (Regrouping(profile, batch, plan, cuts=cuts).ms() for cuts in (False, True))
    shortest = min(plan.iteration_ms, blocks, whole_ms(profile, batch, plan))
    return {
        "plan": plan.iteration_ms,
        "fixed": min(again, plan.iteration_ms * (1 + RANGE)),
        "blocks": shortest,
    }


def report(found: Sequence[dict[str, float]]) -> str:
    """Return the mean times, the gain of blocks, and the greatest gain of a batch."""
    mean = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    most = max(1 - one["blocks"] / one["plan"] for one in found)
    rows = "".join(f"{name:<7} {ms:>10,.0f} ms {ms / mean['plan']:>8.4f}\n" for name, ms in mean.items())
    return f"{rows}blocks gain {1 - mean['blocks'] / mean['plan']:.2%}, at most {most:.2%} in a batch\n"


def main() -> int:
    """Estimate the gain on batches of the lengths of a file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lengths", required=True, help="a file, or `lognormal:MEAN,DEVIATION`")
    options.add_argument("--profile", default="llama-32b-a800,cp", help="a profile with context degrees")
    options.add_argument("--gpus", type=int, default=64)
    options.add_argument("--tokens", type=int, default=200_000, help="of a batch")
    options.add_argument("--longest", type=int, default=32_768, help="tokens; longer sequences are cut")
    options.add_argument("--batches", type=int, default=8)
    arguments = options.parse_args()
    profile = load_profile(arguments.profile)
    cluster = Cluster(arguments.gpus, profile.gpus_per_node)
    batches = drawn(arguments.lengths, arguments.tokens, arguments.batches, arguments.longest)
    sys.stdout.write(report([estimate(profile, cluster, batch) for batch in batches]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
