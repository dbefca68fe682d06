"""LoRA's adapters: a product of two narrow matrices added to a frozen linear map.

Tensor parallelism needs nothing further here. Where the linear map has split outputs, each rank computes the
whole `A x` and its rows of `B A x`. Where it has split inputs, each rank's columns of A give an addend of
`A x`, B is linear, and the sum over the ranks that follows the map sums the adapter too. The gradient of the
whole matrix is partial on each rank in both cases, like that of every replicated parameter
(`parallel/tensor.py`).

Legend: T tokens of the packed micro-batch, I inputs, O outputs, r rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydraulis.config.lora import Adapters
from hydraulis.model.linear import Linear


class AdaptedLinear(Linear):
    """A linear map with an adapter: `W x + b + scaling B A x`."""

    def __init__(self, inputs: int, outputs: int, adapters: Adapters, *, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.scaling = adapters.scaling
        self.lora_A = nn.Linear(inputs, adapters.rank, bias=False)
        self.lora_B = nn.Linear(adapters.rank, outputs, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Map each token; [T, I] in, [T, O] out."""
        inner_Tr = F.linear(input, self.lora_A.weight)
        # One operation, so that B A x is never stored.
        return torch.addmm(super().forward(input), inner_Tr, self.lora_B.weight.t(), alpha=self.scaling)


def add_adapters(layer: nn.Module, adapters: Adapters) -> None:
    """Replace the targets among the linear maps of a layer by adapted ones."""
    for name, module in list(layer.named_modules()):
        owner, _, leaf = name.rpartition(".")
        if leaf in adapters.targets and isinstance(module, nn.Linear):
            adapted = AdaptedLinear(
                module.in_features, module.out_features, adapters, bias=module.bias is not None
            )
            setattr(layer.get_submodule(owner), leaf, adapted)
