"""The elementwise operations of a layer, its leaves: torch's own, or compiled into one kernel each.

A layer's matrix products and attention have kernels of their own. Between them, torch's operations (`PLAIN`)
launch a kernel for each sum, product and function, and each kernel reads and writes whole activations.

Only these leaves are compiled and not whole layers: parameters are views of flat buffers, hooks wait for
transfers, and the number of tokens changes with each micro-batch. The number of tokens is a variable of the
compiled code, so each leaf is compiled once for forward and once for backward, when a stage is warmed up.

The compiled kernels compute in float32 between reading and writing; torch's operations round each
intermediate result to bfloat16. Results are therefore equal up to roundings, and the compiled ones are closer
to exact.

Legend: T tokens of the packed micro-batch, N heads, D head dim, H hidden, I width; R rows, C columns.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes

from hydraulis.errors import HydraulisError
from hydraulis.model.float8 import Quantize, Quantized, quantize
from hydraulis.model.rope import rotate_heads
from hydraulis.model.swiglu import PLAIN_PRODUCT, ProductKernels
from hydraulis.model.tensors import wide_dtype


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


def _plain_add_norm(x_TH: Tensor, y_TH: Tensor, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
    sum_TH = x_TH + y_TH
    return sum_TH, norm(sum_TH)


PLAIN = Leaves(rotate=rotate_heads, product=PLAIN_PRODUCT, add_norm=_plain_add_norm, quantize=quantize)


# Ranks share the cores, and a few small kernels need no pool of processes in each rank. torch reads the
# variable when the compiler is loaded.
_THREADS_VARIABLE = "TORCHINDUCTOR_COMPILE_THREADS"

Kernel = Callable[..., Any]


@functools.cache
def compiled_leaves() -> Leaves:
    """Return the compiled leaves; each is compiled at its first call."""
    os.environ.setdefault(_THREADS_VARIABLE, "1")
    rows = (0,)
    multiply, gradients = (
        _on_elements(_compiled(kernel, (rows,) * number))
        for kernel, number in ((PLAIN_PRODUCT.multiply, 2), (PLAIN_PRODUCT.gradients, 3))
    )
    rounding = _compiled(quantize, ((0, 1),))
    turn, turn_back = (_compiled(kernel, (rows,) * 3) for kernel in (rotate_heads, _turn_back))
    norms = _compiled(_add_norm, (rows, rows, ())), _compiled(_norm_gradients, (rows, rows, rows, ()))
    return Leaves(
        rotate=lambda x_TND, cos_TD, sin_TD: _rotation(x_TND, cos_TD, sin_TD, turn, turn_back),
        product=ProductKernels(multiply, gradients),
        add_norm=lambda x_TH, y_TH, module: _sum_and_norm(x_TH, y_TH, module.weight, _epsilon(module), norms),
        quantize=lambda x_RC: Quantized(*rounding(x_RC)),
    )


def require_compiler(device: torch.device) -> None:
    """Refuse a device for which torch finds no compiler.

    Raises:
        HydraulisError: There is no C++ compiler for the CPU, or no Triton for CUDA (code `extra_missing`).
    """
    reason = _missing(device)
    if reason:
        message = f"train.compile = true needs {reason}, or set train.compile = false"
        raise HydraulisError(message, code="extra_missing")


def _missing(device: torch.device) -> str:
    """Return the missing compiler and its remedy; '' if there is one."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton_package

        return (
            "" if has_triton_package() else "the library 'triton', which is not installed: pip install triton"
        )
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler, and torch finds none: install g++, or name one by the variable CXX"
    return ""


def _compiled(kernel: Kernel, dynamic: Sequence[Sequence[int]]) -> Kernel:
    """Compile a function of tensors without gradients.

    Args:
        kernel: The function; arguments after the tensors are constants.
        dynamic: Dimensions of each tensor whose size may change without compiling again.
    """
    compiled = torch.compile(kernel, fullgraph=True)

    @functools.wraps(kernel)
    def call(*arguments: Any) -> Any:
        from torch._dynamo import maybe_mark_dynamic

        tensors = [x.detach() for x in arguments[: len(dynamic)]]
        for x, dims in zip(tensors, dynamic, strict=True):
            maybe_mark_dynamic(x, dims)
        # torch compiles nothing below a dispatch mode; those of checkpointing watch matrix products alone.
        with _disable_current_modes():
            return compiled(*tensors, *arguments[len(dynamic) :])

    return call


def _on_elements(kernel: Kernel) -> Kernel:
    """Let an elementwise kernel see flat tensors, so that it is compiled once for all widths."""

    @functools.wraps(kernel)
    def call(*tensors: Tensor) -> Any:
        shape = tensors[0].shape
        result = kernel(*(x.reshape(-1) for x in tensors))
        return result.view(shape) if isinstance(result, Tensor) else tuple(x.view(shape) for x in result)

    return call


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor, turn: Kernel, turn_back: Kernel
    ) -> Tensor:
        ctx.save_for_backward(cos_TD, sin_TD)
        ctx.turn_back = turn_back
        turned_TND: Tensor = turn(x_TND, cos_TD, sin_TD)
        return turned_TND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TND: Tensor) -> tuple[Tensor, None, None, None, None]:
        return ctx.turn_back(dy_TND, *ctx.saved_tensors), None, None, None, None


_rotation: Callable[[Tensor, Tensor, Tensor, Kernel, Kernel], Tensor] = _Rotation.apply


def _turn_back(dy_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotate by the negative angles, which is the transpose of a rotation."""
    return rotate_heads(dy_TND, cos_TD, -sin_TD)


class _SumAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TH: Tensor,
        y_TH: Tensor,
        weight_H: Tensor,
        epsilon: float,
        kernels: tuple[Kernel, Kernel],
    ) -> tuple[Tensor, Tensor]:
        norm, ctx.norm_gradients = kernels
        sum_TH, normed_TH = norm(x_TH, y_TH, weight_H, epsilon)
        ctx.save_for_backward(sum_TH, weight_H)
        ctx.epsilon = epsilon
        return sum_TH, normed_TH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsum_TH: Tensor, dnormed_TH: Tensor) -> tuple[Tensor | None, ...]:
        dx_TH, dweight_H = ctx.norm_gradients(dsum_TH, dnormed_TH, *ctx.saved_tensors, ctx.epsilon)
        return dx_TH, dx_TH, dweight_H, None, None


_sum_and_norm: Callable[..., tuple[Tensor, Tensor]] = _SumAndNorm.apply


def _add_norm(x_TH: Tensor, y_TH: Tensor, weight_H: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    sum_TH = x_TH + y_TH
    wide_TH = sum_TH.to(wide_dtype(sum_TH.dtype))
    return sum_TH, (wide_TH * _inverse_rms(wide_TH, epsilon) * weight_H).to(sum_TH.dtype)


def _norm_gradients(
    dsum_TH: Tensor, dnormed_TH: Tensor, sum_TH: Tensor, weight_H: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of both addends, which are equal, and of the norm's weight."""
    wide_TH = sum_TH.to(wide_dtype(sum_TH.dtype))
    inverse_T1 = _inverse_rms(wide_TH, epsilon)
    unit_TH = wide_TH * inverse_T1
    dweight_H = (dnormed_TH * unit_TH).sum(0).to(weight_H.dtype)
    dunit_TH = dnormed_TH * weight_H.to(wide_TH.dtype)
    radial_T1 = (dunit_TH * unit_TH).mean(-1, keepdim=True)
    dx_TH = dsum_TH + inverse_T1 * (dunit_TH - unit_TH * radial_T1)
    return dx_TH.to(sum_TH.dtype), dweight_H


def _inverse_rms(wide_TH: Tensor, epsilon: float) -> Tensor:
    return torch.rsqrt(wide_TH.square().mean(-1, keepdim=True) + epsilon)


def _epsilon(module: nn.RMSNorm) -> float:
    assert module.eps is not None
    return module.eps
