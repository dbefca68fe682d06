"""The checks of the cluster: devices, cost profile, strategies, and the memory of a rank."""

from collections.abc import Sequence

import torch

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.config.run import RunConfig
from hydraulis.errors import InfeasibleError, InvalidInputError
from hydraulis.model.attention.varlen import choose_kernel
from hydraulis.model.float8 import require_float8
from hydraulis.model.leaves import require_triton
from hydraulis.parallel.communicators import Channels, check_kernels_in_flight, communicator_bytes
from hydraulis.parallel.groups import most_groups_of_rank
from hydraulis.parallel.symmetric_memory import require_symmetric_memory
from hydraulis.planner.devices import device_profiles
from hydraulis.planner.profile_document import with_schemes
from hydraulis.planner.strategies import named_strategies
from hydraulis.preflight.finding import Status, with_warnings
from hydraulis.profile.run_profile import chosen_profile, memory_note
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.memory.resident import resident_memory
from hydraulis.runtime.planning.longest import check_longest
from hydraulis.runtime.planning.rank_devices import other_device_note
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.planning.run_schemes import run_schemes, with_layer_splits
from hydraulis.runtime.ranks.device import device_name, dtype_note
from hydraulis.runtime.ranks.shared_devices import SHARE_VARIABLE, sharing_requested
from hydraulis.text.values import format_count, free_mib, mib, needed_mib

# Errors about this machine, which need not hold for the machines of the run.
_MACHINE_ERRORS = ("device_missing", "attention_unsupported")
# Most schemes that a line lists.
_MOST_LISTED = 8
# Why a check needs a machine of the run.
_NO_MEMORY = "planner.memory_mib is absent, and this machine has no CUDA device to take it from"


def _listed(schemes: Sequence[Scheme]) -> str:
    """List schemes; of many only their number and the degrees."""
    if len(schemes) <= _MOST_LISTED:
        return ", ".join(map(str, schemes))
    degrees = (
        f"{axis} up to {max(getattr(scheme, axis) for scheme in schemes)}" for axis in ("tp", "cp", "pp")
    )
    return f"{len(schemes)} schemes ({', '.join(degrees)})"


class ClusterChecks:
    """Checks of the run's ranks.

    Attributes:
        config: Configuration of the run.
        cluster: Cluster of the run.
        is_memory_set: Whether the file or an option, not a preset, sets `planner.memory_mib`.
        profile: Cost profile that the run reads, after the check `saved_profile`; None if it measures one.
    """

    def __init__(self, config: RunConfig, cluster: Cluster, *, is_memory_set: bool = False) -> None:
        self.config = config
        self.is_memory_set = is_memory_set
        self.cluster = cluster
        self.profile: CostProfile | None = None
        self._schemes: list[Scheme] = []

    def strategies(self, sequences: float | None) -> tuple[Status, str]:
        """Place every strategy on the cluster, and split the model by every scheme.

        Args:
            sequences: Mean number of sequences of a batch; None if the data are not indexed yet.

        Raises:
            HydraulisError: A strategy does not fit the cluster, a scheme does not fit the model or is missing
                in the profile, or a search finds no scheme (see `run_schemes`; code `scheme_model_mismatch`).
        """
        planner = self.config.planner
        if planner.memory_mib is None and self.profile is None and planner.is_search and not planner.schemes:
            return "later", f"a search over schemes that fit the memory of a rank: {_NO_MEMORY}"
        schemes = run_schemes(self.config, self.cluster, self.profile)
        self._schemes = with_layer_splits(self.config, schemes)
        resident_memory(self.config, self._schemes, self.cluster)
        planner = self.config.planner
        degrees = [(scheme.tp, scheme.cp) for scheme in schemes]
        groups = most_groups_of_rank(degrees, self.cluster.gpus, self.cluster.gpus_per_node)
        listed = format_count(len(planner.strategies), "strategy", "strategies")
        kind = "a search" if planner.is_search else listed
        text = (
            f"{kind} over {_listed(schemes)} on {self.cluster.gpus:,} ranks in nodes of "
            f"{self.cluster.gpus_per_node:,}; a rank is in at most {groups} tensor and context groups"
        )
        if planner.lookahead > 1:
            text += (
                f"; the batches of {planner.lookahead} steps are planned together, and a sequence moves by "
                f"at most {format_count(planner.max_delay, 'step')}"
            )
        return with_warnings(text, self._idle_ranks() or self._too_few_sequences(sequences))

    def device(self) -> tuple[Status, str]:
        """Compare this machine's devices with those that a node of the run needs, and warn of float32."""
        asked, ranks = self.config.train.device, min(self.cluster.gpus_per_node, self.cluster.gpus)
        devices = torch.cuda.device_count()
        if asked == "cpu":
            return "ok", "train.device = 'cpu': CPU ranks"
        if asked == "auto" and not devices:
            return "ok", (
                "no CUDA device here: on this machine ranks compute on the CPU (train.device = 'auto'); "
                "check again on a machine of the run, or set train.device = 'cuda' to require devices"
            )
        text = (
            f"train.device = '{asked}': the {ranks} ranks of a node need a CUDA device each, and this "
            f"machine has {devices}"
        )
        note = dtype_note(getattr(torch, self.config.train.dtype))
        if devices >= ranks:
            return with_warnings(text, note)
        if devices and sharing_requested():
            return "warning", f"{text}: with {SHARE_VARIABLE}=1 ranks share it, and times mean nothing"
        text = f"{text}: start the run on machines with {ranks}, or set train.device = 'cpu'"
        return ("warning", f"{text}; {note}") if note else ("later", text)

    def kernels(self) -> tuple[Status, str]:
        """Name the layers' kernels that the run chooses, and check that this machine can make them.

        Raises:
            HydraulisError: Triton or its C compiler is missing (code `extra_missing`), the device has no
                products in float8 or does not reach its node's other devices (`device_missing`), or the
                attention kernel does not support the heads (`attention_unsupported`).
        """
        train = self.config.train
        has_kernel = train.attention != "auto"
        elementwise = "compiled" if train.compile else "by torch's kernels"
        products = "float8" if train.float8 else train.dtype
        text = f"elementwise operations {elementwise}, linear maps of the layers in {products}"
        if train.float8_messages:
            text += ", messages between stages in float8"
        if train.symmetric_memory:
            text += ", tensor ranks exchange through symmetric memory"
        if has_kernel:
            text += f", attention by {train.attention}"
        if not (train.compile or train.float8 or train.symmetric_memory or has_kernel):
            return "ok", text
        if train.device == "cuda" and not torch.cuda.is_available():
            return "later", f"{text}: this machine has no CUDA device to check them on"
        device = self._device_here()
        if train.compile:
            require_triton(device)
        if train.float8:
            require_float8(device)
        if train.symmetric_memory:
            require_symmetric_memory(device, self.cluster.gpus_per_node)
        if has_kernel:
            dtype: torch.dtype = getattr(torch, train.dtype)
            choose_kernel(
                torch.empty(0, 1, self.config.model.head_dim, dtype=dtype, device=device), train.attention
            )
        is_emulated = train.float8 and device.type == "cpu"
        return with_warnings(text, "the CPU emulates float8, slower than bfloat16" if is_emulated else "")

    def _device_here(self) -> torch.device:
        """Return the device that a rank of the run would have on this machine."""
        is_cuda = self.config.train.device != "cpu" and torch.cuda.is_available()
        return torch.device("cuda", 0) if is_cuda else torch.device("cpu")

    def memory(self) -> tuple[Status, str]:
        """Compare a rank's resident memory with its memory limit, and NCCL's kernels with the device's room.

        Raises:
            InfeasibleError: No memory is left for activations (code `scheme_too_large`).
            InvalidInputError: The communicators have too many channels (see `check_kernels_in_flight`).
        """
        if not self._schemes:
            return "later", "follows from strategies"
        if self.config.planner.memory_mib is None and self.profile is None:
            return "later", _NO_MEMORY
        resident = resident_memory(self.config, self._schemes, self.cluster)
        memory, limit = self._memory_limit()
        parts = (
            f"{mib(resident.optimizer)} MiB of sharded optimizer state and "
            f"{mib(resident.local)} MiB of parameters and gradients (largest with scheme "
            f"{resident.scheme})"
        )
        needed, communicators = resident.bytes, 0
        device = self._device_here()
        if self.config.train.device == "cuda" or device.type == "cuda":
            channels = Channels.of_run(self.config.train)
            if device.type == "cuda":
                check_kernels_in_flight(self._schemes, self.cluster, channels, device)
            communicators = communicator_bytes(self._schemes, self.cluster, channels)
            needed += communicators
            buffers = " and symmetric buffers" if channels.has_buffers else ""
            parts = f"{parts}, {mib(communicators)} MiB of NCCL's communicators{buffers}"
        if needed >= memory:
            # More ranks take smaller shares of the optimizer state only.
            has_large_optimizer = resident.optimizer >= max(resident.local, communicators)
            remedies = ", or ".join(self._more_memory(needed, use_more_ranks=has_large_optimizer))
            message = (
                f"a rank needs {parts}: {needed_mib(needed)} MiB before any activations, and "
                f"{limit} = {free_mib(memory)} MiB: {remedies}"
            )
            raise InfeasibleError(message, code="scheme_too_large")
        left = f"{mib(memory - needed)} MiB are then left for activations and transfer buffers"
        text = f"{parts}; {left}"
        note = memory_note(self.config, self.profile) if self.profile else ""
        if not note:
            return "ok", text
        # A preset sets memory_mib for measuring a profile; set explicitly, it is expected to take effect.
        return "warning" if self.is_memory_set else "ok", f"{text}, of {note}"

    def saved_profile(self, resumed: ResumedRun | None) -> tuple[Status, str]:
        """Read the cost profile that the configuration names, or that of the resumed run.

        Args:
            resumed: Run to resume; None for a new run.

        Raises:
            HydraulisError: The profile is refused (see `chosen_profile`).
        """
        try:
            profile = chosen_profile(self.config, self.cluster, resumed)
        except InvalidInputError as error:
            if error.code not in _MACHINE_ERRORS:
                raise
            if resumed is None:
                return "later", ""
            return "later", f"that of {resumed.run}, if the ranks' devices are those it was measured on"
        if profile is None:
            return "later", (
                f"measured at the start, for {self.config.planner.profile_seconds:g} s or one pass over all "
                "schemes, whichever takes longer"
            )
        self.profile = profile
        text = f"{profile.name} of {' and '.join(one.device for one in device_profiles(profile))}"
        if profile.other_devices:
            text += f", each for the ranks on it; the checks below are for {profile.device}"
        if resumed and not self.config.planner.profile:
            text += f", that of {resumed.run}"
        return with_warnings(text, self._other_device(profile))

    def _other_device(self, profile: CostProfile) -> str:
        """Warn of a profile of another device than the run's, if this machine has that; otherwise empty."""
        is_on_cpu = self.config.train.device == "cpu"
        is_unknown = not is_on_cpu and (not torch.cuda.is_available() or sharing_requested())
        if profile.other_devices or is_unknown:
            return ""
        own = "the ranks compute on" if is_on_cpu else "this machine has"
        return other_device_note(profile, device_name(torch.device("cpu" if is_on_cpu else "cuda")), own)

    def longest(self, longest: int | None, prompt: int = 0) -> tuple[Status, str]:
        """Compare the longest sequence with the longest that a strategy admits.

        Args:
            longest: Tokens of the longest sequence of the data; None if they are not indexed yet.
            prompt: Tokens of the longest prompt of samples with its continuation; 0 without samples.

        Raises:
            InfeasibleError: No strategy admits the longest sequence (code `sequence_too_long`).
        """
        sequence = self._longest_sequence(longest)
        if prompt:
            sequence += f"; longest prompt of samples with its continuation: {prompt:,} tokens"
        if self.profile is None or not self._schemes:
            return "later", f"{sequence}; the longest admitted follows from profile and strategies"
        profile = with_schemes(self.profile, self._schemes)
        caps = [
            f"{scheme} {profile.cap_tokens(scheme, self.cluster):,}"
            for scheme in map(Scheme, profile.schemes)
        ]
        planner = RunPlanner(self.config.planner, profile, self.cluster)
        admitted = planner.longest_admitted
        limit = (
            "token cap of a micro-batch"
            if self.config.planner.memory == "per_micro_batch"
            else "mean token cap of the micro-batches in flight"
        )
        text = f"{sequence}, {admitted:,} are admitted; {limit}: {', '.join(caps)}"
        check_longest(planner, self.config.planner, profile, max(longest or 0, prompt))
        return ("later" if longest is None and self.config.data.max_tokens > admitted else "ok"), text

    def _longest_sequence(self, longest: int | None) -> str:
        most = self.config.data.max_tokens
        tokens = f"{longest:,}" if longest else f"up to {most:,}"
        text = f"longest sequence: {tokens} tokens"
        budget = self.config.data.tokens_per_batch
        if budget is not None and (longest or most) > budget:
            text += f" (more than data.tokens_per_batch = {budget:,}, so that its batch exceeds that)"
        return text

    def _idle_ranks(self) -> str:
        """Warn of a list in which no strategy uses all ranks; empty otherwise."""
        named = named_strategies(self.config.planner, self.cluster)
        most = max((sum(map(len, one.place(self.cluster))) for one in named), default=self.cluster.gpus)
        if most == self.cluster.gpus:
            return ""
        remedy = "name a strategy whose replicas use all of them"
        return f"at most {most:,} of {self.cluster.gpus:,} ranks work: {remedy}"

    def _too_few_sequences(self, sequences: float | None) -> str:
        """Warn of batches with too few sequences for all ranks; empty otherwise."""
        widest, gpus = max(scheme.ranks for scheme in self._schemes), self.cluster.gpus
        if sequences is None or sequences * widest >= gpus:
            return ""
        return (
            f"a batch has about {sequences:,.1f} sequences, and a replica at most "
            f"{format_count(widest, 'rank')}: about {sequences * widest:,.0f} of {gpus:,} ranks can work; "
            f"raise data.{self.config.data.budget_key}, or use fewer ranks"
        )

    def _more_memory(self, needed: int, *, use_more_ranks: bool) -> list[str]:
        """Return the remedies for a memory limit below `needed` bytes."""
        remedies = ["measure a profile with more memory"]
        if self.profile is None:
            remedies = [f"set planner.memory_mib above {needed_mib(needed)}"]
            if self.config.train.device == "cuda":
                remedies.insert(0, "remove planner.memory_mib, so that the device's own memory counts")
        planner = self.config.planner
        is_open_search = planner.is_search and not planner.schemes
        remedies.append(
            "name fewer schemes in planner.schemes" if is_open_search else "leave out that scheme"
        )
        return [*remedies, "use more ranks"] if use_more_ranks else remedies

    def _memory_limit(self) -> tuple[int, str]:
        """Return a rank's memory in bytes, and its source: a profile has its own."""
        if self.profile is None:
            return self.config.planner.memory_bytes, "planner.memory_mib"
        return self.profile.memory_bytes, "the memory of its profile"
