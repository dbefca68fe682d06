"""Activation checkpointing of a decoder's layers: backward runs their forward again, or gets copies back.

- *full* saves a layer's input.
- *selective* saves attention as well (its heads, its output, its log-sum-exp) and the results of matrix
  products. It recomputes norms, rotations and activations, which are cheap and take about two fifths of the
  bytes. Attention runs once, so a ring passes its keys and values once.
- *offload* saves everything in host memory (`parallel/offload.py`) and recomputes nothing.
- *full-offload* saves a layer's input in host memory. The layer copies it back before it recomputes.

A scheme has one kind for all layers, or two kinds whose layers alternate (`Scheme.checkpointing_of`).

The kinds that recompute repeat the collectives of tensor parallelism. All ranks of a group recompute the same
layers in the order of backward, so their collectives match. Recomputation runs the same operations in the
same order, so gradients are bit-identical.

torch's contexts for selective checkpointing match the operations of forward and recomputation by counting
them. Recomputation omits attention, which would shift that count, so this module has two modes of its own,
for linear maps alone.

Legend: T tokens, t tokens of this rank, H hidden, N query heads, K key/value heads, D head dim.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hydraulis._core import Scheme
from hydraulis.config.model import ModelConfig
from hydraulis.errors import InvalidInputError
from hydraulis.model.decoder import Decoder
from hydraulis.model.linear import WatchedMaps
from hydraulis.model.rope import RotaryTable
from hydraulis.model.sequences import Sequences
from hydraulis.model.tensors import storage_address
from hydraulis.parallel.offload import HostCopies, OffloadedLayers

_Forward = Callable[[Tensor, Sequences, RotaryTable], Tensor]

_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_mm.default,
)

# The decoder has no dropout, so recomputation needs no random state.
_checkpointed: Callable[..., Tensor] = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def check_layer_plan(config: ModelConfig, scheme: Scheme) -> None:
    """Refuse a scheme whose layer plan is for another number of layers.

    Raises:
        InvalidInputError: The plan does not suit the model (code `scheme_model_mismatch`).
    """
    if scheme.planned_layers not in (None, config.num_hidden_layers):
        message = (
            f"scheme {scheme} plans {scheme.planned_layers} layers, but the model has "
            f"{config.num_hidden_layers}; write the model's number after the stroke"
        )
        raise InvalidInputError(message, code="scheme_model_mismatch")


def apply_checkpointing(model: Decoder, scheme: Scheme, copies: HostCopies | None = None) -> None:
    """Checkpoint the layers of a decoder or of a pipeline stage, each as the scheme plans it.

    Args:
        model: Decoder whose layers have all their other hooks already; recomputation runs these hooks again.
        scheme: Scheme with the kind of each layer, by its index in the whole model.
        copies: Copies of the rank in host memory; None for those of this model alone, made at once.
    """
    kinds = {index: scheme.checkpointing_of(int(index)) for index in model.layers}
    for index, layer in model.layers.items():
        if kinds[index] in ("full", "full-offload"):
            layer.forward = partial(_checkpointed, layer.forward)
        elif kinds[index] == "selective":
            layer.forward = partial(_selective_forward, layer.forward)
    offloading = [index for index, kind in kinds.items() if "offload" in kind]
    if offloading:
        _offload(model, offloading, copies or HostCopies(next(model.parameters()).device))


def _offload(model: Decoder, indices: list[str], copies: HostCopies) -> None:
    stage = OffloadedLayers(copies, len(indices), ends_here=model.norm is not None)
    for place, index in enumerate(indices):
        layer = model.layers[index]
        parameters = frozenset(map(storage_address, layer.parameters()))
        layer.forward = stage.wrap(layer.forward, place, parameters)


def _selective_forward(forward: _Forward, x_tH: Tensor, sequences: Sequences, rotary: RotaryTable) -> Tensor:
    saved = _SavedResults()
    y_tH = _checkpointed(
        forward,
        x_tH,
        _SequencesAttendedOnce(sequences, saved),
        rotary,
        context_fn=lambda: (WatchedMaps(_SaveProducts(saved)), WatchedMaps(_ReuseProducts(saved))),
    )
    if saved.products:
        # The product of the layer's last linear map: recomputation stops before it.
        last = saved.products.pop()
        if saved.products and saved.products[-1] is last:
            saved.products.pop()
    return y_tH


@dataclass(slots=True, eq=False)
class _SavedResults:
    """Results of one forward of a layer, saved for its recomputation.

    Attributes:
        products: Results of matrix products, in the order of computation.
        attended: Output of attention; None until attention has run.
    """

    products: deque[Tensor] = field(default_factory=deque)
    attended: Tensor | None = None


class _LayerMode(TorchDispatchMode):
    """A dispatch mode with access to the saved results of one forward of a layer."""

    def __init__(self, saved: _SavedResults) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, through super()
        self._saved = saved


class _SaveProducts(_LayerMode):
    """Saves the results of the linear maps' products during a layer's forward."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            products = self._saved.products
            # Detached, because autograd is about to attach the graph to `result` itself.
            products.append(result.detach())
            if len(products) > 1 and storage_address(products[-2]) == storage_address(args[0]):
                # An adapter added to a product, which recomputation needs no longer.
                products[-2] = products[-1]
        return result


class _ReuseProducts(_LayerMode):
    """Returns the saved products during recomputation and computes the rest."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS and self._saved.products:
            return self._saved.products.popleft()
        return func(*args, **(kwargs or {}))


class _SequencesAttendedOnce:
    """Sequences whose attention runs in the first forward only; recomputation reuses its output."""

    def __init__(self, sequences: Sequences, saved: _SavedResults) -> None:
        self._sequences = sequences
        self._saved = saved

    @property
    def position_T(self) -> Tensor:  # noqa: N802  tensor names carry shape letters
        return self._sequences.position_T

    def attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        if self._saved.attended is not None:
            return self._saved.attended.detach().requires_grad_(self._saved.attended.requires_grad)
        # The innermost hooks apply: attention's tensors are saved instead of recomputed. The hooks return
        # another tensor of the same storage, because an output that refers to itself is never freed.
        with saved_tensors_hooks(Tensor.detach, _identity):
            o_TND = self._sequences.attend(q_TND, k_TKD, v_TKD)
        # Where nothing before it is trained, attention has no gradient, and recomputation saves as little.
        self._saved.attended = o_TND.detach().requires_grad_(o_TND.requires_grad)
        return o_TND


def _identity(tensor: Tensor) -> Tensor:
    return tensor
