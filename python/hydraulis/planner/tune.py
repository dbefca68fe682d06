"""The best plan for sequences of one length, for a run with a fixed context length."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydraulis._core import Cluster, CostProfile, Link, Plan, Planner, uniform_plans
from hydraulis.config.kinds import MemoryRule

# Strategies of each batch that are planned with their transfers, the fastest before transfers.
_PLANNED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPlan:
    """The fastest plan for one global batch.

    Attributes:
        sequences: Number of sequences of the global batch.
        length: Tokens of each sequence.
        plan: The plan, whose replicas all have one scheme.
    """

    sequences: int
    length: int
    plan: Plan

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all replicas per second, with the exposed transfers if the plan has links."""
        return self.sequences * self.length / self.plan.step_ms * 1e3


def tune(
    profile: CostProfile,
    cluster: Cluster,
    length: int,
    batches: Sequence[int],
    *,
    memory: MemoryRule = "per_micro_batch",
    link: Link | None = None,
) -> list[TunedPlan]:
    """Find degrees, checkpointing, replicas and micro-batches for each global batch.

    Every scheme of the profile that admits the length is tried with each number of micro-batches. With a link
    the fastest schemes are planned again with their transfers.

    Args:
        profile: Cost profile.
        cluster: Cluster to plan for.
        length: Tokens of every sequence.
        batches: Numbers of sequences of the global batches to try.
        memory: Memory rule.
        link: Link for transfers of parameters and gradients.

    Returns:
        The fastest plan of each global batch, in their order.

    Raises:
        InfeasibleError: No scheme admits the length (code `sequence_too_long` or `scheme_too_large`).
    """
    tuned = []
    for sequences in batches:
        fastest = [name for name, _, _ in uniform_plans(profile, cluster, length, sequences, memory=memory)]
        # Without any, the planner names the scheme that lacks least.
        strategies = fastest[:_PLANNED] or None
        planner = Planner(profile, cluster, strategies=strategies, memory=memory, link=link)
        plan = planner.plan([length] * sequences)
        tuned.append(TunedPlan(sequences=sequences, length=length, plan=plan))
    return tuned
