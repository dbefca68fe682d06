"""The section `planner`: what a run may choose from."""

import dataclasses
import re
from collections.abc import Iterable

from hydraulis._core import LinkRates
from hydraulis.config.check import check_above, check_at_least, check_not_empty, check_within
from hydraulis.config.kinds import CheckpointingKind, ContextKind, MemoryRule
from hydraulis.errors import InvalidInputError
from hydraulis.text.nearest import did_you_mean

SEARCH_NAME = "search"


def check_strategy_names(names: Iterable[str]) -> None:
    """Refuse what was meant to be several strategies, or the search.

    Raises:
        InvalidInputError: one is either (code `strategy_invalid`).
    """
    for name in names:
        # Inside of a scheme's brackets a comma separates its degrees.
        if "," in re.sub(r"<[^>]*>", "", name):
            message = f"{name!r} holds a comma between strategies: separate them by ';'"
            raise InvalidInputError(message, code="strategy_invalid")
        near = did_you_mean(name, [SEARCH_NAME])
        if near and name != SEARCH_NAME:
            message = f"{name!r} is no strategy, such as 2x<tp4>{near}"
            raise InvalidInputError(message, code="strategy_invalid")


def parse_link_rates(field: str, text: str) -> LinkRates:
    """Read `NODE[,GPU[,MESSAGE]]`; the core knows what is left out, and the limits.

    Args:
        field: that the text is the value of, for messages.
        text: GB/s of a node, GB/s of a GPU inside it, and microseconds of a message.

    Raises:
        InvalidInputError: it is not written so, or a number is beyond its limits (code `config_value`).
    """
    try:
        return LinkRates.parse(text)
    except InvalidInputError:
        message = (
            f"{field} = {text!r} must be 'profile', 'none', or rates of links NODE[,GPU[,MESSAGE]] in GB/s, "
            "GB/s and microseconds: the limits are 1e-9 and 1e9, of a message 0 and 1e9; write it as in "
            "25,200,10"
        )
        raise InvalidInputError(message, code="config_value") from None


SEARCH = (SEARCH_NAME,)
MIB = 1 << 20
"""Bytes of the unit in which memory is asked for and told."""
LINK_FROM_PROFILE = "profile"
NO_LINK = "none"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """What the planner may choose from and what it must respect.

    Attributes:
        strategies: the candidate strategies, such as `1x<tp2>+2x<1>`; the core reads and checks them.
            `search` alone lets it look for a set of replicas for each batch.
        schemes: what replicas a search may use; empty for those of the profile, or where one is measured, for
            degrees that are powers of two, under each kind of `checkpointing`.
        checkpointing: the kinds of activation checkpointing that a search measures where `schemes` names
            none: what a layer computes again in backward instead of keeping it is nothing (`none`), all but
            attention and matrix products (`selective`), or all (`full`). Written schemes name their own:
            `<tp2,full>`.
        max_strategies: how many distinct strategies the run may use, since each needs its process groups;
            unlimited if left out. Evaluation has as many of its own.
        context: how context ranks attend to each other's tokens, for the profile that is measured: `ulysses`
            exchanges tokens for heads, `ring` passes keys and values round.
        profile: the path of a saved cost profile, which brings its own memory and kind of context
            parallelism; empty to measure one at the start.
        profile_seconds: after how long that measurement begins no new pass; it always makes one, and takes
            the time again, twice at most, while times follow no law.
        memory_mib: the memory of one rank for which a profile is measured; where `profile` names one, its own
            counts.
        memory: how micro-batches fit into memory: with `cap` each of them by itself, with `exact` any
            consecutive ones that a pipeline holds at once, which admits longer sequences.
        link: what transfers are predicted by: `profile` takes the links that the profile has measured,
            `NODE[,GPU[,MESSAGE]]` states rates in GB/s and microseconds, `none` leaves transfers out.
        recalibrate: the weight of the newest iteration in what is learnt of each scheme's times while
            training; 0 learns nothing, so that plans depend on the profile alone.
    """

    strategies: tuple[str, ...]
    schemes: tuple[str, ...] = ()
    checkpointing: tuple[CheckpointingKind, ...] = ("none",)
    max_strategies: int | None = None
    context: ContextKind = "ulysses"
    profile: str = ""
    profile_seconds: float = 20.0
    memory_mib: int
    memory: MemoryRule = "cap"
    link: str = LINK_FROM_PROFILE
    recalibrate: float = 0.0

    def __post_init__(self) -> None:
        check_not_empty("planner.strategies", self.strategies, f"['2x<tp2>'] or {list(SEARCH)}")
        for field, texts in (("strategies", self.strategies), ("schemes", self.schemes)):
            for i, text in enumerate(texts):
                check_not_empty(f"planner.{field}[{i}]", text)
        check_strategy_names(self.strategies)
        if SEARCH_NAME in self.strategies and not self.is_search:
            message = (
                f"planner.strategies = {list(self.strategies)}: {SEARCH_NAME!r} searches for strategies "
                "itself and cannot be combined with others; leave the others or it out"
            )
            raise InvalidInputError(message, code="config_value")
        check_not_empty("planner.checkpointing", self.checkpointing)
        if self.schemes and not self.is_search:
            message = (
                f"planner.schemes = {list(self.schemes)} lists the schemes of a search, but "
                'planner.strategies is a list; leave it out, or set planner.strategies = ["search"]'
            )
            raise InvalidInputError(message, code="config_value")
        if self.checkpointing != ("none",) and (self.schemes or not self.is_search):
            naming = "schemes" if self.schemes else "strategies"
            message = (
                f"planner.checkpointing = {list(self.checkpointing)} lists the kinds that a search measures, "
                f"but planner.{naming} names schemes, each with its own kind; write it there, such as "
                '<tp2,full>, and set planner.checkpointing = ["none"]'
            )
            raise InvalidInputError(message, code="config_value")
        if self.max_strategies is not None:
            check_at_least("planner.max_strategies", self.max_strategies, 1)
        check_above("planner.profile_seconds", self.profile_seconds, 0)
        check_at_least("planner.memory_mib", self.memory_mib, 1)
        check_within("planner.recalibrate", self.recalibrate, 0, 1)
        if self.link not in (LINK_FROM_PROFILE, NO_LINK):
            parse_link_rates("planner.link", self.link)

    @property
    def is_search(self) -> bool:
        """Whether strategies are looked for anew for each batch."""
        return self.strategies == SEARCH
