"""What a rank computes at one position: a cut and split decoder over the flat buffers.

Legend: T tokens of this context rank, t = T/tp tokens of this rank, H hidden, v vocabulary rows of this rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hydraulis._core import HeldSlice, Position, held_slices
from hydraulis.config.kinds import AttentionKind, ContextKind
from hydraulis.config.model import ModelConfig
from hydraulis.data.collate import PackedMicroBatch, collate
from hydraulis.data.tokens import SequenceTokens
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import master_parameter_name
from hydraulis.parallel.checkpointing import apply_checkpointing
from hydraulis.parallel.context.context_parallel import ContextParallel
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.parallel.pipeline import cut_stage
from hydraulis.parallel.tensor import apply_tensor_parallel, split_range
from hydraulis.parallel.vocabulary import VocabularyShare, vocab_parallel_loss
from hydraulis.runtime.state.buffers import StrategyBuffers
from hydraulis.runtime.state.parameters import ModelParameters


@dataclass(frozen=True, slots=True)
class StageKinds:
    """How a stage computes where its scheme leaves that open.

    Attributes:
        context: the kind of the replica's context parallelism; None if it has none.
        attention: the kernel.
    """

    context: ContextKind | None
    attention: AttentionKind = "auto"


class Stage:
    """The module of one position on one rank.

    Its parameters are views of the buffers, so it is built once and computes with whatever the buffers hold.

    Attributes:
        module: the part of a decoder that it is.
        held: its parameters, by their index in the core's table.

    Args:
        parameters: of the model.
        position: in a replica.
        kinds: of context parallelism and of attention.
        rank: of this process, which with the position fixes its tensor and its context group.
        groups: where these have been ensured.
        buffers: large enough for the position; those of frozen parameters, if any, stand last.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        position: Position,
        kinds: StageKinds,
        rank: int,
        groups: ProcessGroups,
        *buffers: StrategyBuffers,
    ) -> None:
        scheme, config = position.scheme, parameters.config
        slices = [(part, held) for part in buffers for held in held_slices(part.parameters.table, position)]
        self.is_first = position.stage == 0
        self.is_last = position.stage == scheme.pp - 1
        self.hidden_size = config.hidden_size
        self.dtype = buffers[0].parameter.dtype
        self.device = buffers[0].parameter.device
        self._attention = kinds.attention
        self._tp, self._padding_multiple = scheme.tp, scheme.tp * scheme.cp
        group = groups.get(position.tensor_group(rank))
        context_group = groups.get(position.context_group(rank))
        self._context = None
        if context_group is not None:
            assert kinds.context is not None  # profiles and plans are read only so
            self._context = ContextParallel(kinds.context, context_group)
        rows = split_range(config.vocab_size, scheme.tp, position.tensor_slice)
        self._vocabulary = VocabularyShare(config.vocab_size, rows.start, group)
        with torch.device("meta"):
            self.module = Decoder(config)
        layers = _layers([part.parameters.names[held.parameter] for part, held in slices])
        cut_stage(self.module, layers, first=self.is_first, last=self.is_last)
        self.held = _bind(self.module, config, slices)
        apply_tensor_parallel(self.module, group, position.tensor_slice, scheme.tp)
        apply_checkpointing(self.module, scheme.checkpointing)

    def blocks(self) -> Iterator[tuple[int, nn.Module]]:
        """Give each block's number and the module that its forward begins with, in the order of forward."""
        if self.module.embed_tokens is not None:
            yield 0, self.module.embed_tokens
        for name, layer in self.module.layers.items():
            yield int(name) + 1, layer
        if self.module.norm is not None:
            yield self.module.config.num_hidden_layers + 1, self.module.norm

    def collate(self, documents: Sequence[SequenceTokens]) -> PackedMicroBatch:
        """Pack documents into a micro-batch that the scheme can share out, and take this rank's part.

        It lies on the stage's device.
        """
        return collate(
            documents,
            multiple=self._padding_multiple,
            shared=self._context,
            device=self.device,
            attention=self._attention,
        )

    def forward(self, input_tH: Tensor | None, micro_batch: PackedMicroBatch, denominator: int) -> Tensor:
        """Run the stage on one micro-batch.

        Args:
            input_tH: what the previous stage sent; None on the first.
            micro_batch: as `collate` gives it.
            denominator: target tokens of the whole global batch.

        Returns:
            hidden_tH for the next stage, or on the last one the micro-batch's share of the loss.
        """
        x = micro_batch.token_t if input_tH is None else input_tH
        hidden_tH: Tensor = self.module(x, micro_batch.sequences)
        head = self.module.lm_head
        if head is None:
            return hidden_tH
        return vocab_parallel_loss(
            hidden_tH, head.weight, micro_batch.target_t, denominator, self._vocabulary
        )

    def hidden_shape(self, micro_batch: PackedMicroBatch) -> tuple[int, int]:
        """Give the shape [t, H] of what enters or leaves this stage for a micro-batch."""
        return len(micro_batch.token_t) // self._tp, self.hidden_size


def _layers(names: list[str]) -> range:
    indices = [int(name.split(".")[1]) for name in names if name.startswith("layers.")]
    return range(min(indices), max(indices) + 1)


def _bind(
    module: Decoder, config: ModelConfig, slices: list[tuple[StrategyBuffers, HeldSlice]]
) -> dict[int, nn.Parameter]:
    """Replace every parameter of the module by a view of the buffers; both ends of tied weights share one."""
    bound = {}
    for part, held in slices:
        parameters = part.parameters
        name = parameters.names[held.parameter]
        place = slice(held.offset, held.offset + held.elements)
        view = parameters.view(part.parameter[place], name)
        parameter = nn.Parameter(view, requires_grad=parameters.trained)
        if parameters.trained:
            parameter.grad_dtype = part.gradient.dtype
            parameter.grad = parameters.view(part.gradient[place], name)
        bound[name] = parameter
    for name, _ in list(module.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, bound[master_parameter_name(name, config)])
    trained = [(part, held) for part, held in slices if part.parameters.trained]
    return {held.parameter: bound[part.parameters.names[held.parameter]] for part, held in trained}
