"""The module of one pipeline stage: a decoder cut to the stage, split over tensor ranks, on the local shard.

Legend: T tokens of this context rank, t = T/tp tokens of this rank, H hidden, v vocabulary rows of this rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hydraulis._core import LocalSlice, Position, local_slices
from hydraulis.config.kinds import AttentionKind, ContextKind
from hydraulis.data.collate import MicroBatchLayout, PackedMicroBatch, lay_out
from hydraulis.data.tokens import SequenceTokens
from hydraulis.errors import InvalidInputError
from hydraulis.model.decoder import Decoder
from hydraulis.model.leaves import PLAIN, Leaves, compiled_leaves
from hydraulis.model.parameters import master_parameter_name
from hydraulis.parallel.checkpointing import apply_checkpointing
from hydraulis.parallel.context.context_parallel import ContextParallel
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.parallel.next_token import TokenChoice, best_tokens
from hydraulis.parallel.offload import HostCopies
from hydraulis.parallel.tensor import apply_tensor_parallel, split_range
from hydraulis.parallel.vocabulary import VocabularyShare, vocab_parallel_loss
from hydraulis.runtime.pipeline.messages import Float8Messages, Messages, PlainMessages
from hydraulis.runtime.state.local_shard import LocalShard


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKinds:
    """Choices of a stage that its scheme leaves open.

    Attributes:
        context: Kind of the replica's context parallelism; None without context parallelism.
        attention: Kind of the attention kernel.
        compiles: Whether the elementwise operations of the layers and of the loss are compiled.
        float8: Whether the linear maps of the layers multiply in float8.
        float8_messages: Whether messages between stages are in float8.
    """

    context: ContextKind | None
    attention: AttentionKind = "auto"
    compiles: bool = False
    float8: bool = False
    float8_messages: bool = False


class Stage:
    """The module of one position on one rank.

    Its parameters are views of the local shard, so it is built once and computes with the shard's values.

    Attributes:
        module: The stage's part of the decoder.
        is_first: Whether the stage is the first of its pipeline, which embeds the tokens.
        is_last: Whether it is the last, which computes the loss.
        hidden_size: Numbers of a token in the messages between stages.
        dtype: Dtype of parameters and activations.
        device: Device of parameters and activations.
        padding_multiple: Divisor of the number of tokens of a micro-batch.
        trained: The stage's trained parameters, by their index in the core's table.
        messages: Form of the messages to and from the neighbouring stages.
        copies: Copies of the rank in host memory; None if no layer of the run offloads.

    Args:
        position: Position of this rank in a replica.
        kinds: Choices that the scheme leaves open.
        rank: This process's rank, which with the position decides its tensor and its context group.
        groups: Process groups, among which those two were ensured.
        local_shard: Local shard, large enough for the position.
        copies: Copies of the rank in host memory; None if no layer of the run offloads.
    """

    def __init__(
        self,
        position: Position,
        kinds: StageKinds,
        rank: int,
        groups: ProcessGroups,
        local_shard: LocalShard,
        copies: HostCopies | None = None,
    ) -> None:
        parameters = local_shard.parameters
        scheme, config = position.scheme, parameters.config
        slices = local_slices(parameters.table, position)
        self.is_first = position.stage == 0
        self.is_last = position.stage == scheme.pp - 1
        self.hidden_size = config.hidden_size
        self.dtype = local_shard.parameter.dtype
        self.device = local_shard.parameter.device
        self._attention = kinds.attention
        self._tp, self.padding_multiple = scheme.tp, scheme.tp * scheme.cp
        tensor_group = position.tensor_group(rank)
        group, buffer = groups.get(tensor_group), groups.buffer(tensor_group)
        context_group = groups.get(position.context_group(rank))
        self._context = None
        if context_group is not None:
            assert kinds.context is not None, "a profile states the kind of every scheme with context ranks"
            self._context = ContextParallel(kinds.context, context_group)
        rows = split_range(config.vocab_size, scheme.tp, position.tensor_slice)
        # Under sharded gradients a hook frees and zeroes the head's gradient after the loss's backward.
        has_whole_gradients = local_shard.gradient_places.starts is None
        self._vocabulary = VocabularyShare(
            config.vocab_size, rows.start, group, adds_to_gradient=has_whole_gradients
        )
        with torch.device("meta"):
            self.module = Decoder(config)
        layers = _layers([parameters.names[piece.parameter] for piece in slices])
        cut_stage(self.module, layers, first=self.is_first, last=self.is_last)
        self.trained = _bind(self.module, local_shard, slices)
        apply_tensor_parallel(self.module, group, position.tensor_slice, scheme.tp, buffer)
        leaves = compiled_leaves(self.device) if kinds.compiles else PLAIN
        self._loss_kernels = leaves.loss
        _use_kernels(self.module, leaves, kinds)
        self.messages: Messages = (
            Float8Messages(leaves.quantize) if kinds.float8_messages else PlainMessages()
        )
        self.copies = copies
        apply_checkpointing(self.module, scheme, copies)

    def layer_groups(self) -> Iterator[tuple[int, nn.Module]]:
        """Yield each layer group's number and first module, in the order of forward."""
        if self.module.embed_tokens is not None:
            yield 0, self.module.embed_tokens
        for name, layer in self.module.layers.items():
            yield int(name) + 1, layer
        if self.module.norm is not None:
            yield self.module.config.num_hidden_layers + 1, self.module.norm

    def collate(self, sequences: Sequence[SequenceTokens]) -> PackedMicroBatch:
        """Pack sequences into a micro-batch padded for the scheme; return this rank's part on its device."""
        return self.lay_out(list(map(len, sequences))).fill(sequences)

    def lay_out(self, lengths: Sequence[int]) -> MicroBatchLayout:
        """Lay out a micro-batch of sequences of these lengths, as `collate` packs it, to be filled later."""
        return lay_out(
            lengths,
            multiple=self.padding_multiple,
            shared=self._context,
            device=self.device,
            attention=self._attention,
        )

    def forward(self, input_tH: Tensor | None, micro_batch: PackedMicroBatch, denominator: int) -> Tensor:
        """Run the stage on one micro-batch.

        Args:
            input_tH: Output of the previous stage; None on the first stage.
            micro_batch: Micro-batch from `collate`.
            denominator: Number of target tokens of the whole global batch.

        Returns:
            hidden_tH for the next stage; on the last stage the micro-batch's term of the batch's mean loss.
        """
        hidden_tH = self._hidden(input_tH, micro_batch)
        head = self.module.lm_head
        if head is None:
            return hidden_tH
        return vocab_parallel_loss(
            hidden_tH,
            head.weight,
            micro_batch.target_t,
            denominator,
            self._vocabulary,
            self._loss_kernels,
        )

    def best_tokens(
        self, input_tH: Tensor | None, micro_batch: PackedMicroBatch, choice: TokenChoice
    ) -> Tensor:
        """Run a last stage, and return the best next token of each marked sequence (see `best_tokens`).

        Args:
            input_tH: Output of the previous stage; None on the first stage.
            micro_batch: Micro-batch whose targets are the numbers of the marked sequences.
            choice: Rule of the choice.
        """
        hidden_tH, head = self._hidden(input_tH, micro_batch), self.module.lm_head
        assert head is not None, "only a last stage has the head"
        return best_tokens(hidden_tH, head.weight, micro_batch.target_t, self._vocabulary, choice)

    def _hidden(self, input_tH: Tensor | None, micro_batch: PackedMicroBatch) -> Tensor:
        x = micro_batch.token_t if input_tH is None else input_tH
        hidden_tH: Tensor = self.module(x, micro_batch.sequences)
        return hidden_tH

    def hidden_shape(self, micro_batch: PackedMicroBatch | MicroBatchLayout) -> tuple[int, int]:
        """Return the shape [t, H] of a micro-batch's input and output of this stage."""
        return micro_batch.num_own_tokens // self._tp, self.hidden_size


def _use_kernels(module: Decoder, leaves: Leaves, kinds: StageKinds) -> None:
    module.use_leaves(leaves)
    if kinds.float8:
        module.use_float8(leaves.quantize)


def _layers(names: list[str]) -> range:
    indices = [int(name.split(".")[1]) for name in names if name.startswith("layers.")]
    return range(min(indices), max(indices) + 1)


def _bind(module: Decoder, local_shard: LocalShard, slices: list[LocalSlice]) -> dict[int, nn.Parameter]:
    """Replace the module's parameters by views of the local shard; return the trained ones by table index.

    Both ends of tied embeddings share one parameter.
    """
    parameters = local_shard.parameters
    trained = [piece for piece in slices if parameters.trained[piece.parameter]]
    gradients = local_shard.gradient_places.of_slices(parameters, trained)
    places = local_shard.parameter_places.of_slices(parameters, slices)
    bound = {
        piece.parameter: _view(local_shard, piece, places[piece.parameter], gradients.get(piece.parameter))
        for piece in slices
    }
    by_name = {parameters.names[index]: parameter for index, parameter in bound.items()}
    for name, _ in list(module.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, by_name[master_parameter_name(name, parameters.config)])
    return {index: parameter for index, parameter in bound.items() if parameters.trained[index]}


def _view(local_shard: LocalShard, piece: LocalSlice, place: int, gradient: int | None) -> nn.Parameter:
    """Make a parameter over the local shard; the gradient of a trained one is a view too.

    Args:
        local_shard: The local shard.
        piece: The parameter's slice.
        place: First element of the parameter in its buffer.
        gradient: First element of its gradient in the gradient buffer; None if it is frozen.
    """
    parameters, name = local_shard.parameters, local_shard.parameters.names[piece.parameter]
    values = parameters.view(local_shard.parameter[place : place + piece.elements], name)
    parameter = nn.Parameter(values, requires_grad=gradient is not None)
    if gradient is not None:
        parameter.grad_dtype = local_shard.gradient.dtype
        parameter.grad = parameters.view(local_shard.gradient[gradient : gradient + piece.elements], name)
    return parameter


def cut_stage(model: Decoder, layers: range, *, first: bool, last: bool) -> None:
    """Remove all modules outside one stage from the model, in place.

    Args:
        model: Decoder that still has the stage's layers.
        layers: Global indices of the stage's layers; the layers keep them as names.
        first: Whether the stage has the embedding, and so takes tokens.
        last: Whether the stage has the final norm and the head, and so returns a loss.

    Raises:
        InvalidInputError: The model lacks one of the layers (code `argument_invalid`).
    """
    names = [str(index) for index in layers]
    missing = [name for name in names if name not in model.layers]
    if missing:
        message = (
            f"layers = {layers} includes layer {missing[0]}, but the model has {', '.join(model.layers)}; "
            "cut the stage from a model with these layers"
        )
        raise InvalidInputError(message, code="argument_invalid")
    for name in set(model.layers) - set(names):
        del model.layers[name]
    if not first:
        model.embed_tokens = None
    if not last:
        model.norm = None
        model.lm_head = None
