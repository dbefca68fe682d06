"""The section `planner`: the strategies of a run and the inputs of its planner."""

import dataclasses
import re
from collections.abc import Iterable

from hydraulis._core import LinkRates
from hydraulis.config.check import (
    check_above,
    check_at_least,
    check_at_most,
    check_not_empty,
    check_within,
)
from hydraulis.config.kinds import CheckpointingKind, ContextKind, MemoryRule
from hydraulis.errors import InvalidInputError
from hydraulis.text.values import MIB, did_you_mean

SEARCH_NAME = "search"
# More schemes only make a search longer.
_MOST_LAYER_PLANS = 32
_MOST_LAYER_SPLITS = 32


def check_strategy_names(names: Iterable[str]) -> None:
    """Refuse a name with several strategies, and a misspelt `search`.

    Raises:
        InvalidInputError: A name is one of these (code `strategy_invalid`).
    """
    for name in names:
        # Inside a scheme's brackets a comma separates its degrees.
        if "," in re.sub(r"<[^>]*>", "", name):
            message = f"{name!r} has a comma between strategies: separate them by ';'"
            raise InvalidInputError(message, code="strategy_invalid")
        near = did_you_mean(name, [SEARCH_NAME])
        if near and name != SEARCH_NAME:
            message = f"{name!r} is not a strategy, such as 2x<tp4>{near}"
            raise InvalidInputError(message, code="strategy_invalid")


def parse_link_rates(field: str, text: str) -> dict[str, LinkRates]:
    """Parse `NODE[,GPU[,MESSAGE]]`, or `DEVICE=NODE[,GPU[,MESSAGE]];...`.

    Args:
        field: Name of the key or option, for messages.
        text: GB/s between nodes, GB/s of a GPU inside a node, and microseconds of a message: for all nodes,
            or for those of each device. The core has the defaults and the limits.

    Returns:
        The rates by the name of a device; those for all nodes by `EVERY_DEVICE`.

    Raises:
        InvalidInputError: The text has another form, names a device twice, or a number is beyond its limits
            (code `config_value`).
    """
    entries = [entry.rpartition("=") for entry in text.split(";")]
    names = [name.strip() for name, _, _ in entries]
    is_named = all(names) or (text.count("=") == 0 and len(names) == 1)
    try:
        rates = [LinkRates.parse(rates) for _, _, rates in entries]
    except InvalidInputError:
        is_named = False
    if not is_named or len(set(names)) < len(names):
        message = (
            f"{field} = {text!r} must be 'profile', 'none', or rates of links NODE[,GPU[,MESSAGE]] in GB/s, "
            "GB/s and microseconds: the limits are 1e-9 and 1e9, of a message 0 and 1e9; write it as in "
            "25,200,10, or once for each device as in A100=25,200,10;H100=50,450,10"
        )
        raise InvalidInputError(message, code="config_value")
    return dict(zip(names, rates, strict=True))


SEARCH = (SEARCH_NAME,)
LEAST_SLOW_RANK = 1.1
"""The least slowdown that can be told from noise and from errors of the profile."""
LEAST_SLOW_LINK = 1.2
"""The least slowdown of links that can be told from noise and from errors of their predicted times."""
MOST_LOOKAHEAD = 64
"""The most steps planned together; planning a group takes time in proportion."""
LINK_FROM_PROFILE = "profile"
NO_LINK = "none"
EVERY_DEVICE = ""
"""Key of rates that hold for the nodes of all devices; see `parse_link_rates`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """The strategies to choose from, the cost profile and the memory limit.

    Attributes:
        strategies: Candidate strategies, such as `1x<tp2>+2x<1>`; the core parses and checks them. `search`
            alone searches for a set of replicas for each batch.
        schemes: Schemes that a search may use. Empty for the schemes of the profile; if the profile is
            measured, empty for degrees that are powers of two, under each kind of `checkpointing`.
        checkpointing: Kinds of activation checkpointing that a search measures if `schemes` is empty:
            backward recomputes nothing (`none`), everything except attention and matrix products
            (`selective`), or everything (`full`), or copies everything back from host memory (`offload`),
            or recomputes from an input that it copies back (`full-offload`).
            Schemes in `schemes` and `strategies` name their own kind: `<tp2,full>`.
        layer_plans: Number of layer plans that a search has between each two successive kinds of
            checkpointing of the same degrees, and between each of them and `offload`: schemes such as
            `<tp2,full:12/40>`, whose times and memory follow from both kinds; 0 for none.
        layer_splits: Number of splits of the layers for each place of stages on slow ranks in a pipeline:
            schemes such as `<pp2,split:3-9>`, candidates once a rank is slow; 0 for none.
        max_strategies: Maximum number of distinct strategies of the run, because each needs its own process
            groups; absent for no limit. Evaluation may use as many again.
        context: Context parallelism of a measured profile: `ulysses` exchanges tokens for heads, `ring`
            passes keys and values from rank to rank.
        profile: Path of a saved cost profile, which has its own memory and context parallelism; empty to
            measure a profile at the start.
        device_profiles: Paths of the saved profiles of the other devices, where the ranks have several; each
            rank takes the profile with the name of its device. The first is that of `profile`.
        profile_seconds: Time in seconds after which the measurement starts no new pass. It always makes one
            pass. If the times fit no cost formula, it repeats this time, at most twice.
        memory_mib: Memory of one rank in MiB for a measured profile; a saved profile has its own. Absent for
            that of the device with `train.device = "cuda"`; other ranks need it unless `profile` is set.
        host_memory_mib: Host memory in MiB that a rank may use for activations of layers that offload, for a
            measured profile. Absent for four fifths of the node's, divided by its ranks.
        memory: Memory rule of micro-batches. `per_micro_batch` limits the tokens of each one; `in_flight`
            limits the sum of consecutive ones that a pipeline holds at once, and admits longer sequences.
        link: Rates for the prediction of transfers: `profile` uses the links that the profile measured,
            `NODE[,GPU[,MESSAGE]]` states them in GB/s and microseconds, `DEVICE=NODE[,GPU[,MESSAGE]];...`
            for the nodes of each device, `none` leaves transfers out.
        lookahead: Number of consecutive steps whose batches are planned together: sequences move between
            them where that makes the steps shorter. 1 plans each batch as it comes.
        max_delay: Most steps by which a sequence may be trained earlier or later than its own batch, below
            `lookahead`.
        recalibrate: Weight of the newest iteration in the running correction of each scheme's predicted
            times; 0 for no correction, so that plans do not depend on them.
        slow_rank: Computation time of a rank relative to the other ranks, for the same work, from which plans
            give it less work until it recovers; 0 to plan for equal ranks.
        slow_link: Time of the parameter gather between nodes relative to its usual time, from which plans
            count with slower links of the nodes that cause it; 0 to plan for equal links.
    """

    strategies: tuple[str, ...]
    schemes: tuple[str, ...] = ()
    checkpointing: tuple[CheckpointingKind, ...] = ("none",)
    layer_plans: int = 0
    layer_splits: int = 0
    max_strategies: int | None = None
    context: ContextKind = "ulysses"
    profile: str = ""
    device_profiles: tuple[str, ...] = ()
    profile_seconds: float = 20.0
    memory_mib: int | None = None
    host_memory_mib: int | None = None
    memory: MemoryRule = "per_micro_batch"
    link: str = LINK_FROM_PROFILE
    lookahead: int = 1
    max_delay: int = 1
    recalibrate: float = 0.0
    slow_rank: float = 1.5
    slow_link: float = 2.0

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
        self._check_layer_plans()
        self._check_layer_splits()
        if self.max_strategies is not None:
            check_at_least("planner.max_strategies", self.max_strategies, 1)
        self._check_profiles()
        check_above("planner.profile_seconds", self.profile_seconds, 0)
        self._check_memory()
        self._check_lookahead()
        check_within("planner.recalibrate", self.recalibrate, 0, 1)
        if self.slow_rank:
            check_at_least("planner.slow_rank", self.slow_rank, LEAST_SLOW_RANK)
        if self.slow_link:
            check_at_least("planner.slow_link", self.slow_link, LEAST_SLOW_LINK)
        if self.link not in (LINK_FROM_PROFILE, NO_LINK):
            parse_link_rates("planner.link", self.link)

    def _check_profiles(self) -> None:
        for i, name in enumerate(self.device_profiles):
            check_not_empty(f"planner.device_profiles[{i}]", name)
        if self.device_profiles and not self.profile:
            message = (
                f"planner.device_profiles = {list(self.device_profiles)} names the profiles of further "
                "devices, but planner.profile is empty: name the profile of the first device there"
            )
            raise InvalidInputError(message, code="config_value")

    def _check_memory(self) -> None:
        for field, mib in (("memory_mib", self.memory_mib), ("host_memory_mib", self.host_memory_mib)):
            if mib is not None:
                check_at_least(f"planner.{field}", mib, 1)

    def _check_lookahead(self) -> None:
        check_within("planner.lookahead", self.lookahead, 1, MOST_LOOKAHEAD + 1)
        check_at_least("planner.max_delay", self.max_delay, 1)
        if self.lookahead == 1:
            return
        most = self.lookahead - 1
        check_at_most("planner.max_delay", self.max_delay, most, "planner.lookahead less 1")
        if self.max_strategies is not None:
            message = (
                f"planner.lookahead = {self.lookahead} and planner.max_strategies = {self.max_strategies}: a "
                "lookahead keeps no limit of strategies; leave one of them out, or list the strategies"
            )
            raise InvalidInputError(message, code="config_value")

    def _check_layer_plans(self) -> None:
        check_within("planner.layer_plans", self.layer_plans, 0, _MOST_LAYER_PLANS + 1)
        if self.layer_plans and not self.is_search:
            message = (
                f"planner.layer_plans = {self.layer_plans} adds schemes to a search, but planner.strategies "
                "is a list; write layer plans there, such as <tp2,full:12/40>, or set planner.strategies = "
                '["search"]'
            )
            raise InvalidInputError(message, code="config_value")

    def _check_layer_splits(self) -> None:
        check_within("planner.layer_splits", self.layer_splits, 0, _MOST_LAYER_SPLITS + 1)
        if self.layer_splits and not self.slow_rank:
            message = (
                f"planner.layer_splits = {self.layer_splits} gives fewer layers to slow ranks, but "
                "planner.slow_rank = 0 looks for none; leave one of them out"
            )
            raise InvalidInputError(message, code="config_value")

    @property
    def memory_bytes(self) -> int:
        """Memory of one rank in bytes; `with_device_memory` sets one that is absent."""
        assert self.memory_mib is not None, "with_device_memory sets memory_mib first"
        return self.memory_mib * MIB

    @property
    def host_memory_bytes(self) -> int | None:
        """Host memory of one rank for activations in bytes; None for its part of the node's."""
        return None if self.host_memory_mib is None else self.host_memory_mib * MIB

    @property
    def is_search(self) -> bool:
        """Whether the planner searches for a strategy for each batch."""
        return self.strategies == SEARCH
