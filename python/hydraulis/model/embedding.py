"""The embedding: a lookup whose backward can add to the weight's gradient directly.

Autograd makes a gradient of the whole vocabulary for each micro-batch in the weight's dtype, and adds it to
the float32 gradient: 20 bytes of traffic for each element of the embedding, and 6 bytes of memory. A kernel
that adds up the tokens of each row touches the rows of the micro-batch's tokens alone.

Legend: T tokens of the packed micro-batch, V vocabulary rows of this rank, H hidden.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Adds a row for each token, [T, H], to the token's row of a total, [V, H], always in the same order.
AddRows = Callable[[Tensor, Tensor, Tensor], None]


class Embedding(nn.Embedding):
    """An embedding without torch's options; with a kernel, backward adds to `weight.grad` directly.

    Attributes:
        add_rows: Kernel that adds rows; None for autograd's own gradient.
    """

    add_rows: AddRows | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Look up each token; [T] in, [T, H] out."""
        if self.add_rows is None or self.weight.grad is None:
            return F.embedding(input, self.weight)
        return _lookup(input, self.weight, self.add_rows)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token_T: Tensor, weight_VH: Tensor, add_rows: AddRows) -> Tensor:
        ctx.save_for_backward(token_T)
        # Not among the saved tensors, whose hooks may return another tensor, without the gradient.
        ctx.weight, ctx.add_rows = weight_VH, add_rows
        return F.embedding(token_T, weight_VH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx_TH: Tensor) -> tuple[None, None, None]:
        (token_T,) = ctx.saved_tensors
        ctx.add_rows(ctx.weight.grad, token_T, dx_TH)
        # Autograd runs the weight's accumulation hooks next, without a gradient too.
        return None, None, None


_lookup: Callable[[Tensor, Tensor, AddRows], Tensor] = _Lookup.apply
