"""The section `planner`: what a run may choose from."""

import dataclasses

from hydraulis.config.check import above, at_least, not_empty
from hydraulis.config.context import ContextKind


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """What the planner may choose from and what it must respect.

    Attributes:
        strategies: the candidate strategies, such as `1x<tp2>+2x<1>`; the core reads and checks them.
        context: how context ranks attend to each other's tokens, for the profile that is measured: `ulysses`
            exchanges tokens for heads, `ring` passes keys and values round.
        profile: the path of a saved cost profile, which brings its own memory and kind of context
            parallelism, and must have been measured under `train.checkpointing`; empty to measure one at the
            start.
        profile_seconds: after how long that measurement begins no new pass; it always makes one.
        memory_mib: the memory of one rank for which a profile is measured.
    """

    strategies: tuple[str, ...]
    context: ContextKind = "ulysses"
    profile: str = ""
    profile_seconds: float = 20.0
    memory_mib: int

    def __post_init__(self) -> None:
        not_empty("planner.strategies", self.strategies)
        for i, strategy in enumerate(self.strategies):
            not_empty(f"planner.strategies[{i}]", strategy)
        above("planner.profile_seconds", self.profile_seconds, 0)
        at_least("planner.memory_mib", self.memory_mib, 1)
