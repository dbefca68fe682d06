"""The cluster: strategies and their ranks, the memory of each, and the profile."""

import json

from hydraulis._core import Cluster, CostProfile, Planner, Scheme, Strategy
from hydraulis.config.run import RunConfig
from hydraulis.errors import InfeasibleError
from hydraulis.parallel.context.degree import check_context_degree
from hydraulis.parallel.tensor import check_tensor_degree
from hydraulis.planner.fitting import check_profile
from hydraulis.planner.profile import load_profile
from hydraulis.preflight.finding import Status
from hydraulis.preflight.memory import MIB, held_memory


class ClusterLook:
    """Looks at what a run asks of its ranks.

    Attributes:
        config: of the run.
        cluster: that it is to run on.
        profile: that it names; None if it names none, or a refused one.
    """

    def __init__(self, config: RunConfig, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self.profile: CostProfile | None = None
        self._placed = False

    def strategies(self) -> tuple[Status, str]:
        """Place every strategy, and cut the model by every scheme.

        Raises:
            HydraulisError: a strategy has no place (see `Strategy.place`), or the model cannot be cut (codes
                `tensor_degree`, `context_degree`, `too_many_stages`).
        """
        model = self.config.model
        for strategy in self.config.planner.strategies:
            Strategy(strategy).place(self.cluster)
        for scheme in self._schemes():
            check_tensor_degree(model, scheme.tp)
            kind = self.config.planner.context if scheme.cp > 1 else None
            if not self.config.planner.profile:
                check_context_degree(model, scheme, kind)
        held_memory(self.config, self._schemes(), self.cluster.gpus)
        self._placed = True
        number = len(self.config.planner.strategies)
        return "ok", (
            f"{number} fit {self.cluster.gpus} ranks in nodes of {self.cluster.gpus_per_node}; "
            f"schemes {', '.join(map(str, self._schemes()))}"
        )

    def memory(self) -> tuple[Status, str]:
        """Compare what a rank holds of the model with its memory.

        Raises:
            InfeasibleError: it leaves nothing for activations (code `scheme_too_large`).
        """
        held = held_memory(self.config, self._schemes(), self.cluster.gpus)
        memory, named = self._memory()
        parts = (
            f"{held.home / MIB:,.0f} MiB of the home state and {held.buffers / MIB:,.0f} MiB of parameters "
            f"and gradients (the largest stage: {held.scheme})"
        )
        if held.bytes >= memory:
            message = (
                f"a rank holds {parts}, and {named} = {memory // MIB} MiB leaves nothing for activations: "
                "raise it, leave strategies with that scheme out, or use more ranks"
            )
            raise InfeasibleError(message, code="scheme_too_large")
        return "ok", f"{parts}; {(memory - held.bytes) / MIB:,.0f} MiB are left for activations"

    def named_profile(self) -> tuple[Status, str]:
        """Read the profile, and compare it with the run.

        Raises:
            HydraulisError: it is refused (see `load_profile` and `check_profile`), or does not know a scheme,
                or has no room for it (codes `scheme_unknown`, `scheme_too_large`).
        """
        name = self.config.planner.profile
        if not name:
            return "later", f"measured at the start, about {self.config.planner.profile_seconds:g} s"
        profile = load_profile(name)
        check_profile(self.config, profile)
        for scheme in self._schemes():
            check_context_degree(self.config.model, scheme, profile.context(scheme))
        caps = {scheme: profile.cap_tokens(scheme, self.cluster) for scheme in self._schemes()}
        self.profile = profile
        most = ", ".join(f"{scheme} {cap:,}" for scheme, cap in caps.items())
        return "ok", f"{profile.name} of {profile.device}; most tokens of a micro-batch: {most}"

    def longest(self, longest: int | None) -> tuple[Status, str]:
        """Compare the longest sequence with the longest that a strategy admits.

        Args:
            longest: of the data; None if it is not known yet.

        Raises:
            InfeasibleError: no strategy admits it (code `document_too_long`).
        """
        most = self.config.data.max_tokens
        has = f"the longest has {longest:,} tokens" if longest else f"up to {most:,} tokens may come"
        if self.profile is None or not self._placed:
            return "later", f"{has}; what is admitted follows from profile and strategies"
        strategies = list(self.config.planner.strategies)
        admitted = Planner(self.profile, self.cluster, strategies=strategies).longest_admitted
        text = f"{has}, {admitted:,} are admitted"
        if longest is None:
            return ("ok" if most <= admitted else "later"), text
        if longest > admitted:
            message = (
                f"the longest sequence has {longest} tokens, and no strategy admits more than {admitted}: "
                "lower data.max_tokens, raise planner.memory_mib, or add a wider strategy to "
                "planner.strategies"
            )
            raise InfeasibleError(message, code="document_too_long")
        return "ok", text

    def _memory(self) -> tuple[int, str]:
        """Give a rank's memory in bytes, and who says so: a profile brings its own."""
        if self.profile is None:
            return self.config.planner.memory_mib * MIB, "planner.memory_mib"
        hardware = json.loads(self.profile.to_json())["hardware"]
        return int(hardware["memory_bytes"]), "the memory of planner.profile"

    def _schemes(self) -> list[Scheme]:
        strategies = [Strategy(strategy) for strategy in self.config.planner.strategies]
        return sorted({scheme for strategy in strategies for scheme in strategy.schemes})
