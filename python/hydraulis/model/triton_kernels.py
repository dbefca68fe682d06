"""The elementwise operations of a layer on CUDA, one Triton kernel each.

Torch's operations launch a kernel for each sum, product and function, and each kernel reads and writes whole
activations. These kernels read each input once, compute in float32 (float64 for float64), and round once.

The number of tokens is the size of the grid and no argument, so a micro-batch of another size compiles
nothing: a stage's warm-up makes all kernels of its steps.

Legend: T tokens of the packed micro-batch, N heads, D head dim, P = D/2 pairs, I width; R rows, C columns.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hydraulis.model.float8 import EXPONENT, FRACTION, LARGEST, SMALLEST, Quantized

# Elements of a program: enough for loads of 16 bytes by each of its 128 threads.
_BLOCK = 1024


def rotate(x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor, direction: int) -> Tensor:
    """Rotate heads, as `rope.rotate_heads` does."""
    x_TND = x_TND.contiguous()
    y_TND = torch.empty_like(x_TND)
    tokens, heads, width = x_TND.shape
    pairs_block = triton.next_power_of_2(width // 2)
    heads_block = max(1, min(triton.next_power_of_2(heads), 2 * _BLOCK // pairs_block))
    _rotate[(tokens, triton.cdiv(heads, heads_block))](
        x_TND,
        cos_TD,
        sin_TD,
        y_TND,
        HEADS=heads,
        PAIRS=width // 2,
        DIRECTION=direction,
        HEADS_BLOCK=heads_block,
        PAIRS_BLOCK=pairs_block,
        WIDE=_wide(x_TND),
    )
    return y_TND


@triton.jit
def _rotate(
    x,
    cos,
    sin,
    y,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    DIRECTION: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    PAIRS_BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Rotate some heads of one token; both halves of the table's rows are equal."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
    pair = tl.arange(0, PAIRS_BLOCK)
    angle = token * (2 * PAIRS) + pair
    cosine = tl.load(cos + angle, mask=pair < PAIRS, other=0).to(WIDE)[None, :]
    sine = tl.load(sin + angle, mask=pair < PAIRS, other=0).to(WIDE)[None, :] * DIRECTION
    place = (token * HEADS + head)[:, None] * (2 * PAIRS) + pair[None, :]
    mask = (head < HEADS)[:, None] & (pair < PAIRS)[None, :]
    left = tl.load(x + place, mask=mask).to(WIDE)
    right = tl.load(x + place + PAIRS, mask=mask).to(WIDE)
    tl.store(y + place, left * cosine - right * sine, mask=mask)
    tl.store(y + place + PAIRS, right * cosine + left * sine, mask=mask)


def multiply(gate_TI: Tensor, up_TI: Tensor) -> Tensor:
    """Return `silu(gate) * up`."""
    product_TI = torch.empty_like(up_TI, memory_format=torch.contiguous_format)
    _multiply[_grid(up_TI)](
        gate_TI.contiguous(),
        up_TI.contiguous(),
        product_TI,
        WIDTH=up_TI.shape[-1],
        BLOCK=_BLOCK,
        WIDE=_wide(up_TI),
    )
    return product_TI


@triton.jit
def _multiply(gate, up, product, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    mask = column < WIDTH
    g = tl.load(gate + place, mask=mask).to(WIDE)
    u = tl.load(up + place, mask=mask).to(WIDE)
    tl.store(product + place, g * tl.sigmoid(g) * u, mask=mask)


def gradients(dproduct_TI: Tensor, gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up."""
    dgate_TI, dup_TI = (torch.empty_like(up_TI, memory_format=torch.contiguous_format) for _ in range(2))
    _gradients[_grid(up_TI)](
        dproduct_TI.contiguous(),
        gate_TI.contiguous(),
        up_TI.contiguous(),
        dgate_TI,
        dup_TI,
        WIDTH=up_TI.shape[-1],
        BLOCK=_BLOCK,
        WIDE=_wide(up_TI),
    )
    return dgate_TI, dup_TI


@triton.jit
def _gradients(dproduct, gate, up, dgate, dup, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    mask = column < WIDTH
    d = tl.load(dproduct + place, mask=mask).to(WIDE)
    g = tl.load(gate + place, mask=mask).to(WIDE)
    u = tl.load(up + place, mask=mask).to(WIDE)
    s = tl.sigmoid(g)
    tl.store(dgate + place, d * u * s * (1 + g * (1 - s)), mask=mask)
    tl.store(dup + place, d * g * s, mask=mask)


def quantize(x_RC: Tensor) -> Quantized:
    """Round a factor to float8, as `float8.quantize` does."""
    x_RC = x_RC.contiguous()
    rows, columns = x_RC.shape
    value_RC = torch.empty_like(x_RC, dtype=torch.float8_e4m3fn)
    scale_R1 = x_RC.new_empty((rows, 1), dtype=torch.float32)
    _quantize[(rows,)](
        x_RC,
        value_RC,
        scale_R1,
        COLUMNS=columns,
        BLOCK=min(4 * _BLOCK, triton.next_power_of_2(columns)),
        LARGEST=LARGEST,
        SMALLEST=SMALLEST,
        EXPONENT=EXPONENT,
        FRACTION=FRACTION,
    )
    return Quantized(value_RC, scale_R1)


@triton.jit
def _quantize(
    x,
    value,
    scale,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    EXPONENT: tl.constexpr,
    FRACTION: tl.constexpr,
):
    """Round one row: its largest element first, then every element."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full([BLOCK], SMALLEST, tl.float32)
    for start in range(0, COLUMNS, BLOCK):
        column = start + tl.arange(0, BLOCK)
        part = tl.load(x + row * COLUMNS + column, mask=column < COLUMNS, other=0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(part))
    bits = tl.div_rn(tl.max(largest, axis=0), LARGEST).to(tl.int32, bitcast=True)
    power = ((bits + FRACTION) & EXPONENT).to(tl.float32, bitcast=True)
    tl.store(scale + row, power)
    # Exact, for a power of two.
    inverse = tl.div_rn(1.0, power)
    for start in range(0, COLUMNS, BLOCK):
        column = start + tl.arange(0, BLOCK)
        part = tl.load(x + row * COLUMNS + column, mask=column < COLUMNS, other=0).to(tl.float32)
        tl.store(value + row * COLUMNS + column, (part * inverse).to(tl.float8e4nv), mask=column < COLUMNS)


def _grid(x_TI: Tensor) -> tuple[int, int]:
    """Return one program for each row and each block of its columns."""
    width = x_TI.shape[-1]
    return x_TI.numel() // width, triton.cdiv(width, _BLOCK)


def _wide(x: Tensor) -> Any:
    return tl.float64 if x.dtype == torch.float64 else tl.float32
