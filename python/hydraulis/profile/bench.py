"""Times and counts the bytes of one scheme: this rank's stage of a replica, computing without its peers."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Cluster, Position, Scheme, Strategy
from hydraulis.config.kinds import CheckpointingKind, ContextKind
from hydraulis.data.collate import PackedMicroBatch
from hydraulis.errors import InvalidInputError
from hydraulis.profile.activations import activation_bytes, allocated_bytes
from hydraulis.profile.observations import Timing
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.timers import step_timers
from hydraulis.runtime.worker import Worker


class SavedBytes(NamedTuple):
    """The bytes that one rank saves for backward at its peak, as a linear function of the tokens.

    Attributes:
        per_token: Bytes per token of a micro-batch.
        constant: Bytes that do not depend on the tokens.
        host_per_token: Bytes of host memory per token.
    """

    per_token: float
    constant: float
    host_per_token: float = 0.0


class SchemeBench:
    """This rank's stage in one of several replicas of a scheme that run side by side.

    Every rank constructs the bench together, because it makes process groups.

    Attributes:
        replicas: Ranks of each replica, in the order of their positions.
        position: Position of this rank; None outside all replicas.

    Raises:
        InvalidInputError: The scheme does not fit the nodes of the cluster (code `strategy_unplaceable`).
    """

    def __init__(self, worker: Worker, scheme: Scheme, context: ContextKind | None) -> None:
        self.scheme = scheme
        self.replicas = place_replicas(scheme, worker.cluster)
        placed = {
            rank: position
            for ranks in self.replicas
            for rank, position in zip(ranks, Position.all(scheme), strict=True)
        }
        worker.ensure_groups([placed.get(rank) for rank in range(worker.cluster.gpus)])
        self.position = placed.get(dist.get_rank())
        self._worker = worker
        self._stage = self._recomputed = self._uncheckpointed = None
        self._offloading = 0
        self._timers = step_timers(worker.device)
        self._fit()
        if self.position is not None:
            self._stage = worker.stage(self.position, context)
            layers = map(int, self._stage.module.layers)
            kinds = [scheme.checkpointing_of(layer) for layer in layers]
            self._offloading = sum("offload" in kind for kind in kinds)
            most = _most_recomputing(kinds)
            self._recomputed, self._uncheckpointed = (
                worker.stage(_under(self.position, kind), context) for kind in (most, "none")
            )

    def initialize_parameters(self) -> None:
        """Set the stage's parameters like at the start of training: norms 1, biases 0, matrices small.

        Every rank calls this, because all ranks gather frozen parameters again together. Under sharded
        parameters layer groups share memory, and those set last leave their values there.
        """
        self._fit()
        if self._stage is None:
            return
        generator = torch.Generator(self._stage.device).manual_seed(0)
        for name, parameter in self._stage.module.named_parameters():
            if parameter.dim() == 1:
                parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.data.normal_(0.0, self._stage.module.config.initializer_range, generator=generator)

    def saved_bytes(self, tokens: int) -> SavedBytes:
        """Count this rank's saved bytes at its peak, from micro-batches of `tokens` and `2 tokens`."""
        self._fit()
        if self._stage is None or self.position is None:
            return SavedBytes(0.0, 0.0)
        bytes_few, host_few = self._peak_bytes(self.position.in_flight, [tokens])
        bytes_many, host_many = self._peak_bytes(self.position.in_flight, [2 * tokens])
        few, many = (self._micro_batch([count]).num_tokens for count in (tokens, 2 * tokens))
        per_token = (bytes_many - bytes_few) / (many - few)
        host_per_token = (host_many - host_few) / (many - few)
        return SavedBytes(per_token, bytes_few - few * per_token, host_per_token)

    def _peak_bytes(self, in_flight: int, lengths: list[int]) -> tuple[float, float]:
        """Count the bytes of `in_flight` micro-batches on the device, and those in host memory.

        On the device are the saved bytes of all layers that do not offload, those of the two layers that do
        and are there at once, and the recomputed bytes of one layer.

        The recomputed bytes are those of a layer without checkpointing, less its saved bytes under the kind
        that recomputes most of the stage's kinds. On CUDA the allocator knows the peak of the last
        micro-batch, with all tensors that a computation needs while it runs.
        """
        assert self._stage is not None
        assert self._recomputed is not None
        assert self._uncheckpointed is not None
        copies = self._stage.copies
        if self._stage.device.type == "cuda":
            micro_batch = self._micro_batch(lengths)
            if copies is not None:
                copies.reset()
            saved, peak = allocated_bytes(self._stage, self._input(micro_batch), micro_batch)
            host = 0 if copies is None else copies.most_host_bytes
            return (in_flight - 1) * saved + peak, in_flight * host
        if copies is not None:
            copies.reset()
        saved = self._micro_batch_bytes(self._stage, lengths)
        passing, host = (0, 0) if copies is None else (copies.most_device_bytes, copies.most_host_bytes)
        if in_flight > 1 and self._offloading == 1:
            # Two micro-batches have such a layer on the device.
            passing *= 2
        if self._uncheckpointed is self._recomputed:
            return in_flight * saved + passing, in_flight * host
        whole = self._micro_batch_bytes(self._uncheckpointed, lengths)
        least = (
            saved if self._recomputed is self._stage else self._micro_batch_bytes(self._recomputed, lengths)
        )
        recomputed = (whole - least) / len(self._stage.module.layers)
        return in_flight * saved + recomputed + passing, in_flight * host

    def _fit(self) -> None:
        """Give the local shard the size for this scheme; benches take turns with it."""
        self._worker.fit_local_shard_alone(self.scheme)

    def _micro_batch_bytes(self, stage: Stage, lengths: list[int]) -> int:
        micro_batch = self._micro_batch(lengths)
        return activation_bytes(stage, self._input(micro_batch), micro_batch)

    def time(self, lengths: list[int]) -> Timing | None:
        """Time one micro-batch of sequences with these lengths; None outside all replicas."""
        self._fit()
        if self._stage is None:
            return None
        micro_batch = self._micro_batch(lengths)
        input_tH = self._input(micro_batch)
        with self._timers.computing():
            output = self._stage.forward(input_tH, micro_batch, max(1, micro_batch.num_targets))
        with self._timers.computing():
            # A first stage with only frozen parameters has no backward.
            if output.requires_grad:
                torch.autograd.backward(output, None if self._stage.is_last else torch.ones_like(output))
        return Timing(*self._timers.read().computed_ms)

    def _micro_batch(self, lengths: list[int]) -> PackedMicroBatch:
        assert self._stage is not None
        # The times do not depend on the tokens, so every rank may draw the same ones.
        rng = np.random.default_rng(0)
        vocab_size = self._stage.module.config.vocab_size
        return self._stage.collate([rng.integers(vocab_size, size=length) for length in lengths])

    def _input(self, micro_batch: PackedMicroBatch) -> Tensor | None:
        assert self._stage is not None
        if self._stage.is_first:
            return None
        shape = self._stage.hidden_shape(micro_batch)
        return torch.randn(shape, dtype=self._stage.dtype, device=self._stage.device).requires_grad_()


def _most_recomputing(kinds: Sequence[CheckpointingKind]) -> CheckpointingKind:
    """Return the kind of a stage's layers that recomputes most, as one that saves on the device."""
    on_device: dict[CheckpointingKind, CheckpointingKind] = {"offload": "none", "full-offload": "full"}
    return max((on_device.get(kind, kind) for kind in kinds), key=get_args(CheckpointingKind).index)


def _under(position: Position, kind: CheckpointingKind) -> Position:
    """Return the same position under one kind of checkpointing in every layer."""
    return Position(
        position.scheme.with_checkpointing(kind),
        stage=position.stage,
        context_rank=position.context_rank,
        tensor_rank=position.tensor_rank,
    )


def place_replicas(scheme: Scheme, cluster: Cluster) -> list[list[int]]:
    """Place as many replicas of a scheme as fit the cluster, by the placement of a plan.

    Returns:
        The ranks of each replica.

    Raises:
        InvalidInputError: Not even one replica fits (code `strategy_unplaceable`).
    """
    for count in range(cluster.gpus // scheme.ranks, 1, -1):
        with suppress(InvalidInputError):
            return Strategy(f"{count}x{scheme}").place(cluster)
    return Strategy(f"1x{scheme}").place(cluster)
