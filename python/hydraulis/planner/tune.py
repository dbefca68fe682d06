"""The best plan for sequences of one length, for a run with a fixed context length."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydraulis._core import Cluster, CostProfile, Link, Plan, Planner, Strategy, uniform_plans
from hydraulis.config.kinds import MemoryRule
from hydraulis.errors import InvalidInputError
from hydraulis.planner.profile_document import with_schemes

# Strategies of each batch that are planned with their transfers, the fastest before transfers.
_PLANNED = 3
# Layer plans between two kinds of checkpointing, so many that every number of layers is among them: saved
# bytes fall by equal factors from one to the next, by less than a layer's part at this number.
_LAYER_PLANS = 1000
# Most sequences of a batch: with 2,000,000 short ones a search does not hear an interrupt for a minute.
_MOST_SEQUENCES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPlan:
    """The fastest plan for one global batch.

    Attributes:
        sequences: Number of sequences of the global batch.
        length: Tokens of each sequence.
        plan: The plan, whose replicas all have one scheme.
        stage_layers: Layers of each stage; None where the profile does not state them.
    """

    sequences: int
    length: int
    plan: Plan
    stage_layers: list[int] | None

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

    Every scheme of the profile that admits the length is tried with each number of micro-batches, and with
    each number of layers between two kinds of checkpointing that the profile has. With a link the fastest
    schemes are planned again with their transfers.

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
        InvalidInputError: A batch has more than 100,000 sequences (code `argument_invalid`).
    """
    largest = max(batches, default=0)
    if largest > _MOST_SEQUENCES:
        message = (
            f"a global batch has {largest:,} sequences, and the limit is {_MOST_SEQUENCES:,}: give smaller "
            "batches (--batch)"
        )
        raise InvalidInputError(message, code="argument_invalid")
    tuned = []
    mixed = profile.with_layer_plans(_LAYER_PLANS)
    for sequences in batches:
        fastest = [name for name, _, _ in uniform_plans(mixed, cluster, length, sequences, memory=memory)]
        strategies = [Strategy(name) for name in fastest[:_PLANNED]]
        schemes = {scheme for strategy in strategies for scheme in strategy.schemes}
        planner = Planner(
            # Without any, the planner names the scheme that lacks least.
            with_schemes(mixed, schemes) if strategies else profile,
            cluster,
            strategies=[str(strategy) for strategy in strategies] or None,
            memory=memory,
            link=link,
        )
        plan = planner.plan([length] * sequences)
        layers = mixed.stage_layers(plan.replicas[0].scheme)
        tuned.append(TunedPlan(sequences=sequences, length=length, plan=plan, stage_layers=layers))
    return tuned
