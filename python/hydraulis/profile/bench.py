"""One scheme under measurement: this rank's stage of a replica, computing by itself."""

from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Cluster, Position, Scheme, Strategy
from hydraulis.config.kinds import ContextKind
from hydraulis.data.collate import PackedMicroBatch
from hydraulis.errors import InvalidInputError
from hydraulis.profile.memory import activation_bytes
from hydraulis.profile.observations import Timing
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.pipeline.timers import iteration_clock
from hydraulis.runtime.worker import Worker


class KeptBytes(NamedTuple):
    """What one rank keeps for backward at its worst moment, as a line in the tokens of a micro-batch."""

    per_token: float
    constant: float


class SchemeBench:
    """As many replicas of a scheme as have a place, side by side; this rank's part in one of them.

    Made by every rank together, because process groups are.

    Attributes:
        replicas: the ranks of each, in the order of their positions.
        position: of this rank; None if it is left over.

    Raises:
        InvalidInputError: the scheme has no place on the nodes that there are (code `strategy_unplaceable`).
    """

    def __init__(self, worker: Worker, scheme: Scheme, context: ContextKind | None) -> None:
        self.scheme = scheme
        self.replicas = side_by_side(scheme, worker.cluster)
        placed = {
            rank: position
            for ranks in self.replicas
            for rank, position in zip(ranks, Position.all(scheme), strict=True)
        }
        worker.ensure_groups([placed.get(rank) for rank in range(worker.cluster.gpus)])
        self.position = placed.get(dist.get_rank())
        self._frozen = worker.frozen
        self._stage = self._uncheckpointed = None
        self._clock = iteration_clock(worker.device)
        if self.position is not None:
            self._stage = worker.stage(self.position, context)
            plain = Position(
                scheme.under("none"),
                stage=self.position.stage,
                context_rank=self.position.context_rank,
                tensor_rank=self.position.tensor_rank,
            )
            self._uncheckpointed = worker.stage(plain, context)

    def fill(self) -> None:
        """Give the stage parameters as at the start of training: norms 1, biases 0, the rest small.

        Called by every rank: of frozen parameters all have to forget what they held.
        """
        if self._frozen is not None:
            self._frozen.forget()
        if self._stage is None:
            return
        generator = torch.Generator(self._stage.device).manual_seed(0)
        for name, parameter in self._stage.module.named_parameters():
            if parameter.dim() == 1:
                parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.data.normal_(0.0, self._stage.module.config.initializer_range, generator=generator)

    def kept_bytes(self, tokens: int) -> KeptBytes:
        """Count what this rank keeps at its worst moment, from two micro-batches: `tokens` and twice that."""
        if self._stage is None or self.position is None:
            return KeptBytes(0.0, 0.0)
        held_few, held_many = (
            self._most_kept(self.position.in_flight, [count]) for count in (tokens, 2 * tokens)
        )
        few, many = (self._micro_batch([count]).num_tokens for count in (tokens, 2 * tokens))
        per_token = (held_many - held_few) / (many - few)
        return KeptBytes(per_token, held_few - few * per_token)

    def _most_kept(self, in_flight: int, lengths: list[int]) -> float:
        """Count what so many micro-batches keep, and what backward has of a layer that forward did not keep.

        That is what the layer keeps without checkpointing, less what it keeps.
        """
        assert self._stage is not None
        assert self._uncheckpointed is not None
        kept = self._kept_by(self._stage, lengths)
        if self._uncheckpointed is self._stage:
            return in_flight * kept
        whole = self._kept_by(self._uncheckpointed, lengths)
        return in_flight * kept + (whole - kept) / len(self._stage.module.layers)

    def _kept_by(self, stage: Stage, lengths: list[int]) -> int:
        micro_batch = self._micro_batch(lengths)
        return activation_bytes(stage, self._input(micro_batch), micro_batch)

    def time(self, lengths: list[int]) -> Timing | None:
        """Time one micro-batch of sequences of these lengths; None if this rank is left over."""
        if self._stage is None:
            return None
        micro_batch = self._micro_batch(lengths)
        input_tH = self._input(micro_batch)
        with self._clock.computing():
            output = self._stage.forward(input_tH, micro_batch, max(1, micro_batch.num_targets))
        with self._clock.computing():
            # A first stage whose parameters are all frozen has no backward.
            if output.requires_grad:
                torch.autograd.backward(output, None if self._stage.is_last else torch.ones_like(output))
        return Timing(*self._clock.read().computed_ms)

    def _micro_batch(self, lengths: list[int]) -> PackedMicroBatch:
        assert self._stage is not None
        # What the tokens are makes no difference to the time, so every rank may draw the same ones.
        rng = np.random.default_rng(0)
        vocab_size = self._stage.module.config.vocab_size
        documents = [rng.integers(vocab_size, size=length) for length in lengths]
        return self._stage.collate(documents)

    def _input(self, micro_batch: PackedMicroBatch) -> Tensor | None:
        assert self._stage is not None
        if self._stage.is_first:
            return None
        shape = self._stage.hidden_shape(micro_batch)
        return torch.randn(shape, dtype=self._stage.dtype, device=self._stage.device).requires_grad_()


def side_by_side(scheme: Scheme, cluster: Cluster) -> list[list[int]]:
    """Place as many replicas of a scheme as a plan could have: on whole nodes, or inside one.

    Returns:
        The ranks of each.

    Raises:
        InvalidInputError: not even one has a place (code `strategy_unplaceable`).
    """
    for count in range(cluster.gpus // scheme.ranks, 1, -1):
        with suppress(InvalidInputError):
            return Strategy(f"{count}x{scheme}").place(cluster)
    return Strategy(f"1x{scheme}").place(cluster)
