"""The elementwise operations of a layer, which may be compiled into one kernel each.

A layer's matrix products and attention have kernels of their own. Between them, torch's operations launch a
kernel for each sum, product and function, and each kernel reads and writes whole activations. `PLAIN` has
torch's operations; `model/compiled.py` makes the compiled ones.

Legend: T tokens of the packed micro-batch, H hidden.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from hydraulis.model.float8 import Quantize, quantize
from hydraulis.model.rope import rotate_heads
from hydraulis.model.swiglu import PLAIN_PRODUCT, ProductKernels


class Leaves(NamedTuple):
    """The elementwise operations of a layer.

    Attributes:
        rotate: Rotation of heads by the cosines and sines of a rotary table.
        product: Kernels of SwiGLU's gated product.
        add_norm: Sum of the residual stream and a layer's part, and the sum's RMS norm.
        quantize: Rounding of a factor to float8.
    """

    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    product: ProductKernels
    add_norm: Callable[[Tensor, Tensor, nn.RMSNorm], tuple[Tensor, Tensor]]
    quantize: Quantize


def _add_norm(x_TH: Tensor, y_TH: Tensor, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
    sum_TH = x_TH + y_TH
    return sum_TH, norm(sum_TH)


PLAIN = Leaves(rotate=rotate_heads, product=PLAIN_PRODUCT, add_norm=_add_norm, quantize=quantize)
