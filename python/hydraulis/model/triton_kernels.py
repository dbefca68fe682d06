"""The elementwise operations of layers, loss and embedding on CUDA, by a Triton kernel each.

Torch's operations launch a kernel for each sum, product and function, and each kernel reads and writes whole
activations. These kernels read each input once, compute in float32 (float64 for float64), and round once.

The number of tokens is the size of the grid, or an argument that Triton does not compile in, so a micro-batch
of another size compiles nothing: a stage's warm-up makes all kernels of its steps.

Legend: T tokens of the packed micro-batch, H hidden, N heads, D head dim, P = D/2 pairs, I width; R rows, C
columns; B programs; c tokens of a chunk, V and v rows of the vocabulary.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hydraulis.model.float8 import EXPONENT, FRACTION, LARGEST, SMALLEST, Quantized

# Elements of a program: enough for loads of 16 bytes by each of its 128 threads.
_BLOCK = 1024
# Tokens of one row that a program adds up at a time.
_ROWS = 4
# Programs that share the rows of a sum over tokens: four for each of an H100's multiprocessors.
_PROGRAMS = 528


def add_norm(x_TH: Tensor, y_TH: Tensor | None, weight_H: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return `x + y`, or `x` itself without a second addend, and its RMS norm."""
    x_TH = x_TH.contiguous()
    sum_TH = x_TH if y_TH is None else torch.empty_like(x_TH)
    normed_TH = torch.empty_like(x_TH)
    width = x_TH.shape[-1]
    _add_norm[(len(x_TH),)](
        x_TH,
        x_TH if y_TH is None else y_TH.contiguous(),
        weight_H,
        sum_TH,
        normed_TH,
        WIDTH=width,
        EPSILON=epsilon,
        ADDS=y_TH is not None,
        BLOCK=triton.next_power_of_2(width),
        WIDE=_wide(x_TH),
        num_warps=_warps(width),
    )
    return sum_TH, normed_TH


@triton.jit
def _add_norm(
    x,
    y,
    weight,
    total,
    normed,
    WIDTH: tl.constexpr,
    EPSILON: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Add and normalise one row; the norm is that of the rounded sum, which backward reads."""
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(x + place, mask=mask, other=0)
    if ADDS:
        row = (row.to(WIDE) + tl.load(y + place, mask=mask, other=0).to(WIDE)).to(row.dtype)
        tl.store(total + place, row, mask=mask)
    row = row.to(WIDE)
    inverse = 1 / tl.sqrt(tl.sum(row * row, axis=0) / WIDTH + EPSILON)
    tl.store(normed + place, row * inverse * tl.load(weight + column, mask=mask).to(WIDE), mask=mask)


def norm_gradients(
    dsum_TH: Tensor,
    dnormed_TH: Tensor,
    sum_TH: Tensor,
    weight_H: Tensor,
    epsilon: float,
    needs_weight: bool,  # noqa: FBT001 - the signature of `NormKernels.gradients`
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of each addend, which are equal, and of the weight, or None."""
    rows, width = sum_TH.shape
    wide = torch.promote_types(sum_TH.dtype, torch.float32)
    programs = min(rows, _PROGRAMS)
    dx_TH = torch.empty_like(sum_TH)
    dweight_BH = sum_TH.new_empty((programs if needs_weight else 0, width), dtype=wide)
    _norm_gradients[(programs,)](
        dsum_TH.contiguous(),
        dnormed_TH.contiguous(),
        sum_TH,
        weight_H,
        dx_TH,
        dweight_BH,
        rows,
        programs,
        WIDTH=width,
        EPSILON=epsilon,
        NEEDS_WEIGHT=needs_weight,
        BLOCK=triton.next_power_of_2(width),
        WIDE=_wide(sum_TH),
        num_warps=_warps(width),
    )
    return dx_TH, dweight_BH.sum(0) if needs_weight else None


@triton.jit(do_not_specialize=["rows", "programs"])
def _norm_gradients(
    dtotal,
    dnormed,
    total,
    weight,
    dx,
    dweight,
    rows,
    programs,
    WIDTH: tl.constexpr,
    EPSILON: tl.constexpr,
    NEEDS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Compute the rows of one program, and its addend of the weight's gradient."""
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    scale = tl.load(weight + column, mask=mask, other=0).to(WIDE)
    addend = tl.zeros([BLOCK], WIDE)
    program = tl.program_id(0).to(tl.int64)
    for number in range(program, rows, programs):
        place = number * WIDTH + column
        row = tl.load(total + place, mask=mask, other=0).to(WIDE)
        d = tl.load(dnormed + place, mask=mask, other=0).to(WIDE)
        inverse = 1 / tl.sqrt(tl.sum(row * row, axis=0) / WIDTH + EPSILON)
        unit = row * inverse
        addend += d * unit
        d *= scale
        radial = tl.sum(d * unit, axis=0) / WIDTH
        stream = tl.load(dtotal + place, mask=mask, other=0).to(WIDE)
        tl.store(dx + place, stream + inverse * (d - unit * radial), mask=mask)
    if NEEDS_WEIGHT:
        tl.store(dweight + program * WIDTH + column, addend, mask=mask)


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


def product_gradients(dproduct_TI: Tensor, gate_TI: Tensor, up_TI: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up."""
    dgate_TI, dup_TI = (torch.empty_like(up_TI, memory_format=torch.contiguous_format) for _ in range(2))
    _product_gradients[_grid(up_TI)](
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
def _product_gradients(
    dproduct, gate, up, dgate, dup, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    mask = column < WIDTH
    d = tl.load(dproduct + place, mask=mask).to(WIDE)
    g = tl.load(gate + place, mask=mask).to(WIDE)
    u = tl.load(up + place, mask=mask).to(WIDE)
    s = tl.sigmoid(g)
    tl.store(dgate + place, d * u * s * (1 + g * (1 - s)), mask=mask)
    tl.store(dup + place, d * g * s, mask=mask)


def add_rows(total_VH: Tensor, row_T: Tensor, addend_TH: Tensor) -> None:
    """Add each addend to its row of the total; the addends of one row are added up in one order.

    The time grows with the number of addends of the most frequent row.

    Args:
        total_VH: Total, contiguous.
        row_T: Rows of the total, int64, none of them negative.
        addend_TH: Addends.
    """
    assert total_VH.is_contiguous()
    sorted_T, order_T = row_T.sort(stable=True)
    tokens, width = addend_TH.shape
    _add_rows[_grid(addend_TH)](
        total_VH,
        sorted_T,
        order_T,
        addend_TH.contiguous(),
        tokens,
        WIDTH=width,
        ROWS=_ROWS,
        BLOCK=_BLOCK,
        WIDE=_wide(total_VH),
    )


@triton.jit(do_not_specialize=["tokens"])
def _add_rows(
    total,
    sorted_rows,
    order,
    addend,
    tokens,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Add up all tokens of one row, some at a time, in the program of the first of them."""
    start = tl.program_id(0)
    row = tl.load(sorted_rows + start)
    before = tl.load(sorted_rows + start - 1, mask=start > 0, other=-1)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = column < WIDTH
    place = row * WIDTH + column
    if before != row:
        total_row = tl.load(total + place, mask=in_row, other=0).to(WIDE)
        here = row
        while here == row:
            number = start + tl.arange(0, ROWS)
            mask = number < tokens
            mask = mask & (tl.load(sorted_rows + number, mask=mask, other=-1) == row)
            token = tl.load(order + number, mask=mask, other=0)
            places = token[:, None] * WIDTH + column[None, :]
            part = tl.load(addend + places, mask=mask[:, None] & in_row[None, :], other=0).to(WIDE)
            total_row += tl.sum(part, axis=0)
            start += ROWS
            here = tl.load(sorted_rows + start, mask=start < tokens, other=-1)
        tl.store(total + place, total_row, mask=in_row)


def quantize(x_RC: Tensor) -> Quantized:
    """Round a factor to float8, as `float8.quantize` does, but for the scale of a row with NaN."""
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


def exponentials(logits_cv: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's largest logit and sum of exponentials; the logits stay as they are."""
    tokens, width = logits_cv.shape
    max_c, sum_c = logits_cv.new_empty(tokens), logits_cv.new_empty(tokens)
    _exponentials[(tokens,)](logits_cv, max_c, sum_c, WIDTH=width, BLOCK=_BLOCK, WIDE=_wide(logits_cv))
    return max_c, sum_c


@triton.jit
def _exponentials(logits, largest, total, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Read a row once: each lane keeps the largest logit so far, and the sum relative to it."""
    row = tl.program_id(0).to(tl.int64)
    most = tl.full([BLOCK], -3e38, WIDE)
    added = tl.zeros([BLOCK], WIDE)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        part = tl.load(logits + row * WIDTH + column, mask=column < WIDTH, other=float("-inf"))
        higher = tl.maximum(most, part)
        added = added * tl.exp(most - higher) + tl.exp(part - higher)
        most = higher
    top = tl.max(most, axis=0)
    tl.store(largest + row, top)
    tl.store(total + row, tl.sum(added * tl.exp(most - top), axis=0))


def loss_gradient(
    logits_cv: Tensor,
    max_c: Tensor,
    factor_c: Tensor,
    column_c1: Tensor,
    less_c: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return the exponentials times the factors, less the numbers at their columns."""
    # Each element is read and written by one program, so the logits have room for the gradient.
    dlogits_cv = logits_cv if dtype == logits_cv.dtype else torch.empty_like(logits_cv, dtype=dtype)
    _loss_gradient[_grid(logits_cv)](
        logits_cv, max_c, factor_c, column_c1, less_c, dlogits_cv, WIDTH=logits_cv.shape[-1], BLOCK=_BLOCK
    )
    return dlogits_cv


@triton.jit
def _loss_gradient(logits, largest, factor, target, less, dlogits, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    part = tl.load(logits + row * WIDTH + column, mask=mask, other=0)
    value = tl.exp(part - tl.load(largest + row)) * tl.load(factor + row)
    value -= tl.where(column == tl.load(target + row), tl.load(less + row), 0)
    tl.store(dlogits + row * WIDTH + column, value, mask=mask)


def _grid(x_TI: Tensor) -> tuple[int, int]:
    """Return one program for each row and each block of its columns."""
    width = x_TI.shape[-1]
    return x_TI.numel() // width, triton.cdiv(width, _BLOCK)


def _warps(width: int) -> int:
    """Return the warps of a program that holds a row in registers."""
    return 4 if width <= 2048 else 8 if width <= 8192 else 16


def _wide(x: Tensor) -> Any:
    return tl.float64 if x.dtype == torch.float64 else tl.float32
