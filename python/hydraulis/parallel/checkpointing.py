"""Activation checkpointing, put on the layers of a decoder from outside: backward runs their forward again.

*full* keeps a layer's input. *selective* keeps attention besides (its heads, its output, its log-sum-exp) and
the results of matrix products, and computes norms, rotations and activations again, which are cheap and hold
about two fifths of the bytes. Attention is then never run twice, so a ring does not go round again; what
tensor ranks exchange, they exchange again under either kind. All ranks of a group recompute the same layers,
in the order of backward, so they meet; and as the same operations run in the same order, gradients do not
change by a bit.

The contexts that torch makes for selective checkpointing count every operation of a region in forward and in
recomputation. Attention, which is left out there, would shift that count, so the two modes here keep their
own.

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

from hydraulis.config.kinds import CheckpointingKind
from hydraulis.model.decoder import Decoder
from hydraulis.model.rope import RotaryTable
from hydraulis.model.sequences import Sequences

_Forward = Callable[[Tensor, Sequences, RotaryTable], Tensor]

_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)

# The decoder has no dropout, so no random state has to be brought back.
_checkpointed: Callable[..., Tensor] = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


def apply_checkpointing(model: Decoder, kind: CheckpointingKind) -> None:
    """Checkpoint every layer of a decoder or of a stage of one.

    Args:
        model: with what else is hooked on the inside of its layers, which then runs again with them.
        kind: of all layers alike.
    """
    for layer in model.layers.values():
        if kind == "full":
            layer.forward = partial(_checkpointed, layer.forward)
        elif kind == "selective":
            layer.forward = partial(_selectively, layer.forward)


def _selectively(forward: _Forward, x_tH: Tensor, sequences: Sequences, rotary: RotaryTable) -> Tensor:
    kept = _Kept()
    y_tH = _checkpointed(
        forward,
        x_tH,
        _AttendedOnce(sequences, kept),
        rotary,
        context_fn=lambda: (_KeepProducts(kept), _ReuseProducts(kept)),
    )
    if kept.products:
        # That of the layer's last map: recomputation has all that it needs before it comes there.
        kept.products.pop()
    return y_tH


@dataclass(slots=True, eq=False)
class _Kept:
    """What one forward of a layer keeps for its recomputation.

    Attributes:
        products: results of matrix products, in the order of their computation.
        attended: the output of attention, once it is known.
        in_attention: whether attention runs now, whose products are its own business.
    """

    products: deque[Tensor] = field(default_factory=deque)
    attended: Tensor | None = None
    in_attention: bool = False


class _OfLayer(TorchDispatchMode):
    """A mode that knows what one forward of a layer keeps."""

    def __init__(self, kept: _Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, through super()
        self._kept = kept


class _KeepProducts(_OfLayer):
    """Keeps the results of matrix products while a layer's forward runs."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and not self._kept.in_attention:
            # Autograd is about to put the graph on `result` itself.
            self._kept.products.append(result.detach())
        return result


class _ReuseProducts(_OfLayer):
    """Gives the kept results while the forward runs again, and computes what is not kept."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS and self._kept.products:
            return self._kept.products.popleft()
        return func(*args, **(kwargs or {}))


class _AttendedOnce:
    """Sequences whose attention runs in the first forward alone; its output is there for the second."""

    def __init__(self, sequences: Sequences, kept: _Kept) -> None:
        self._sequences = sequences
        self._kept = kept

    @property
    def position_T(self) -> Tensor:  # noqa: N802  a tensor bears its shape
        return self._sequences.position_T

    def attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        if self._kept.attended is not None:
            return self._kept.attended.detach().requires_grad_()
        self._kept.in_attention = True
        # The innermost hooks count: what attention saves is saved, and not left to be computed again. They
        # give another tensor of the same storage, because an output that holds itself is never freed.
        with saved_tensors_hooks(Tensor.detach, _itself):
            o_TND = self._sequences.attend(q_TND, k_TKD, v_TKD)
        self._kept.in_attention = False
        self._kept.attended = o_TND.detach()
        return o_TND


def _itself(tensor: Tensor) -> Tensor:
    return tensor
