"""The cluster: strategies and their ranks, the memory of each, and the profile."""

import torch

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.config.planner import MIB
from hydraulis.config.run import RunConfig
from hydraulis.errors import InfeasibleError, InvalidInputError
from hydraulis.parallel.groups import most_groups_of_rank
from hydraulis.planner.profile_document import with_schemes
from hydraulis.preflight.finding import Status, warned
from hydraulis.profile.run_profile import chosen_profile, memory_note
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.memory.resident import held_memory
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.planning.run_schemes import named_strategies, run_schemes
from hydraulis.text.numbers import format_count

# What the machine at hand lacks the ranks may have.
_OF_THE_RANKS = ("device_missing", "attention_unsupported")


class ClusterLook:
    """Looks at what a run asks of its ranks.

    Attributes:
        config: of the run.
        cluster: that it is to run on.
        memory_asked: whether `planner.memory_mib` was set by hand, and not by a preset.
        profile: that it names or goes on with; None if there is none, or a refused one.
    """

    def __init__(self, config: RunConfig, cluster: Cluster, *, memory_asked: bool = False) -> None:
        self.config = config
        self.memory_asked = memory_asked
        self.cluster = cluster
        self.profile: CostProfile | None = None
        self._schemes: list[Scheme] = []

    def strategies(self, sequences: float | None) -> tuple[Status, str]:
        """Place every strategy, and cut the model by every scheme.

        Args:
            sequences: of a batch, in the mean; None if it is not known yet.

        Raises:
            HydraulisError: a strategy has no place, the model cannot be cut, the profile lacks a scheme, or a
                search finds none (see `run_schemes`; code `scheme_model_mismatch`).
        """
        schemes = run_schemes(self.config, self.cluster, self.profile)
        held_memory(self.config, schemes, self.cluster)
        self._schemes = schemes
        planner = self.config.planner
        degrees = [(scheme.tp, scheme.cp) for scheme in schemes]
        groups = most_groups_of_rank(degrees, self.cluster.gpus, self.cluster.gpus_per_node)
        listed = format_count(len(planner.strategies), "strategy", "strategies")
        kind = "a search" if planner.is_search else listed
        text = (
            f"{kind} over {', '.join(map(str, schemes))} on {self.cluster.gpus:,} ranks in nodes of "
            f"{self.cluster.gpus_per_node:,}; a rank is in at most {groups} tensor and context groups"
        )
        return warned(text, self._idle() or self._too_few(sequences))

    def device(self) -> tuple[Status, str]:
        """Compare the devices of this machine with those that a node of the run needs."""
        asked, ranks = self.config.train.device, min(self.cluster.gpus_per_node, self.cluster.gpus)
        devices = torch.cuda.device_count()
        if asked == "cpu":
            return "ok", "train.device = 'cpu': CPU ranks"
        if asked == "auto" and not devices:
            return "ok", (
                "no CUDA device here: on this machine ranks compute on the CPU (train.device = 'auto'); "
                "look again where the run is to be, or set train.device = 'cuda' to make sure"
            )
        text = (
            f"train.device = '{asked}': {ranks} ranks of a node take a CUDA device each, and this machine "
            f"has {devices}"
        )
        if devices >= ranks:
            return "ok", text
        return "later", f"{text}: start it where there are {ranks}, or set train.device = 'cpu'"

    def memory(self) -> tuple[Status, str]:
        """Compare what a rank holds of the model with its memory.

        Raises:
            InfeasibleError: it leaves nothing for activations (code `scheme_too_large`).
        """
        if not self._schemes:
            return "later", "follows from the schemes"
        held = held_memory(self.config, self._schemes, self.cluster)
        memory, named = self._memory()
        parts = (
            f"{held.home / MIB:,.0f} MiB of the home state and {held.buffers / MIB:,.0f} MiB of parameters "
            f"and gradients (the largest stage: {held.scheme})"
        )
        if held.bytes >= memory:
            message = (
                f"a rank holds {parts}, and {named} = {memory // MIB:,} MiB leaves nothing for activations: "
                "raise it, leave strategies with that scheme out, or use more ranks"
            )
            raise InfeasibleError(message, code="scheme_too_large")
        left = f"{(memory - held.bytes) / MIB:,.0f} MiB are left for activations and what transfers stage"
        text = f"{parts}; {left}"
        said = memory_note(self.config, self.profile) if self.profile else ""
        if not said:
            return "ok", text
        # A preset's is for whoever measures; who sets it means it to count.
        return "warning" if self.memory_asked else "ok", f"{text}, of {said}"

    def saved_profile(self, resumed: ResumedRun | None) -> tuple[Status, str]:
        """Read the profile that the run names, or that of the run it goes on with.

        Raises:
            HydraulisError: it is refused (see `chosen_profile`).
        """
        try:
            profile = chosen_profile(self.config, resumed)
        except InvalidInputError as error:
            if error.code not in _OF_THE_RANKS:
                raise
            known = f"that of {resumed.run}, if the ranks compute as it was measured" if resumed else ""
            return "later", known
        if profile is None:
            return "later", (
                f"measured at the start, for {self.config.planner.profile_seconds:g} s or one pass over all "
                "schemes if that takes longer"
            )
        self.profile = profile
        text = f"{profile.name} of {profile.device}"
        return "ok", text if self.config.planner.profile or not resumed else f"{text}, that of {resumed.run}"

    def longest(self, longest: int | None) -> tuple[Status, str]:
        """Compare the longest sequence with the longest that a strategy admits.

        Args:
            longest: of the data; None if it is not known yet.

        Raises:
            InfeasibleError: no strategy admits it (code `sequence_too_long`).
        """
        most = self.config.data.max_tokens
        has = f"the longest has {longest:,} tokens" if longest else f"up to {most:,} tokens may come"
        budget = self.config.data.tokens_per_batch
        if budget is not None and (longest or most) > budget:
            has += f" (more than data.tokens_per_batch = {budget:,}, which its batch then exceeds)"
        if self.profile is None or not self._schemes:
            return "later", f"{has}; what is admitted follows from profile and strategies"
        profile = with_schemes(self.profile, self._schemes)
        caps = [f"{scheme} {profile.cap_tokens(scheme, self.cluster):,}" for scheme in self._schemes]
        planner = RunPlanner(self.config.planner, profile, self.cluster)
        admitted = planner.longest_admitted
        limit = (
            "most tokens of a micro-batch"
            if self.config.planner.memory == "cap"
            else "most tokens of the micro-batches that a pipeline holds at once, in their mean"
        )
        text = f"{has}, {admitted:,} are admitted; {limit}: {', '.join(caps)}"
        if longest is None:
            return ("ok" if most <= admitted else "later"), text
        planner.check_longest(longest)
        return "ok", text

    def _idle(self) -> str:
        """Say that no strategy of a list has work for all ranks; nothing where one has."""
        named = named_strategies(self.config.planner, self.cluster)
        most = max((sum(map(len, one.place(self.cluster))) for one in named), default=self.cluster.gpus)
        if most == self.cluster.gpus:
            return ""
        remedy = "name a strategy whose replicas take all of them"
        return f"at best {most:,} of {self.cluster.gpus:,} ranks work: {remedy}"

    def _too_few(self, sequences: float | None) -> str:
        """Say that a batch has too few sequences for work on all ranks; nothing where it has not."""
        widest, gpus = max(scheme.ranks for scheme in self._schemes), self.cluster.gpus
        if sequences is None or sequences * widest >= gpus:
            return ""
        return (
            f"a batch has about {sequences:,.1f} sequences, and no replica more than "
            f"{format_count(widest, 'rank')}: some {sequences * widest:,.0f} of {gpus:,} ranks can work; "
            f"raise data.{self.config.data.budget_key}, or take fewer ranks"
        )

    def _memory(self) -> tuple[int, str]:
        """Give a rank's memory in bytes, and who says so: a profile brings its own."""
        if self.profile is None:
            return self.config.planner.memory_mib * MIB, "planner.memory_mib"
        return self.profile.memory_bytes, "the memory of its profile"
