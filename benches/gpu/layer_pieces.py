"""Pieces of a layer's and a step's work, by torch's operations and as Hydraulis does them.

Each function makes the inputs on a device, small enough for a CPU if the flag asks for that, and returns the
ways to do the work. The sizes are those of Llama 3 8B with 8,192 tokens.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.data.collate import PackedMicroBatch, lay_out
from hydraulis.model.embedding import Embedding
from hydraulis.model.float8 import float8_linear
from hydraulis.model.leaves import PLAIN, Leaves, compiled_leaves
from hydraulis.model.rope import RotaryTable
from hydraulis.model.swiglu import gated_product, product_not_saved
from hydraulis.model.tensors import add_product_
from hydraulis.parallel import vocabulary
from hydraulis.parallel.collectives import _sum_in_one_kernel, _sum_in_order
from hydraulis.parallel.symmetric_memory import BUFFER_BYTES, SymmetricBuffer
from hydraulis.parallel.vocabulary import VocabularyShare, vocab_parallel_loss
from hydraulis.runtime.pipeline.rank_work import MicroBatches
from hydraulis.runtime.redistribute.segments import pack
from hydraulis.runtime.state.update_rule import DecaySpan, UpdateRule

Ways = dict[str, Callable[[], object]]
TOKENS, HIDDEN, INTERMEDIATE, VOCABULARY = 8192, 4096, 14_336, 128_256
PIECE, SLICES = 1 << 20, 1024


def head_chunks(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Compute the head's loss with its gradients in chunks of several sizes."""
    tokens, width, rows = (64, 32, 96) if tiny else (TOKENS, HIDDEN, VOCABULARY)
    hidden_TH = _drawn(tokens, width, device=device).requires_grad_()
    weight_VH = _drawn(rows, width, device=device).requires_grad_()
    target_T = torch.randint(rows, (tokens,), device=device)

    def loss(chunk: int | None) -> None:
        count = vocabulary.num_chunks if chunk is None else lambda tokens, *_: -(-tokens // chunk)
        with patch.object(vocabulary, "num_chunks", count):
            share = VocabularyShare(rows, 0, None)
            total = vocab_parallel_loss(hidden_TH, weight_VH, target_T, tokens, share)
        torch.autograd.grad(total, (hidden_TH, weight_VH))

    sizes = (16, 32) if tiny else (256, 1024)
    return {
        **{f"chunks of {size:,} tokens": lambda size=size: loss(size) for size in sizes},  # type: ignore[misc]
        "hydraulis": lambda: loss(None),
    }


def embedding(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Add to the float32 gradient of an embedding."""
    tokens, width, rows = (64, 32, 96) if tiny else (TOKENS, HIDDEN, VOCABULARY)
    table = Embedding(rows, width, device=device, dtype=torch.bfloat16)
    table.weight.grad_dtype = torch.float32
    table.weight.grad = torch.zeros_like(table.weight, dtype=torch.float32)
    token_T, dx_TH = torch.randint(rows, (tokens,), device=device), _drawn(tokens, width, device=device)

    def look_up(leaves: Leaves) -> None:
        table.add_rows = leaves.add_rows
        table(token_T).backward(dx_TH)

    return plain_and_compiled(look_up, device)


def swiglu(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Compute a feed-forward from gate and up, forward and backward."""
    tokens, width, hidden = (16, 24, 8) if tiny else (TOKENS, INTERMEDIATE, HIDDEN)
    gate_TI, up_TI = (_drawn(tokens, width, device=device).requires_grad_() for _ in range(2))
    weight_HI = _drawn(hidden, width, device=device).requires_grad_()
    inputs = (gate_TI, up_TI, weight_HI)

    def four_saved() -> None:
        torch.autograd.grad(F.linear(F.silu(gate_TI) * up_TI, weight_HI).sum(), inputs)

    def two_saved(leaves: Leaves) -> None:
        product_TI = gated_product(gate_TI, up_TI, leaves.product)
        with product_not_saved(product_TI):
            y_TH = F.linear(product_TI, weight_HI)
        torch.autograd.grad(y_TH.sum(), inputs)

    return {"torch, four tensors saved": four_saved, **plain_and_compiled(two_saved, device)}


def rotation(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Rotate heads, forward and backward."""
    tokens, heads, width = (16, 2, 8) if tiny else (TOKENS, 32, 128)
    x_TND = _drawn(tokens, heads, width, device=device).requires_grad_()
    cos_TD, sin_TD = (_drawn(tokens, width, device=device) for _ in range(2))

    def rotate(leaves: Leaves) -> None:
        table = RotaryTable(cos_TD, sin_TD, leaves.rotate)
        torch.autograd.grad(table.rotate(x_TND).sum(), x_TND)

    return plain_and_compiled(rotate, device)


def residual_norm(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Add to the residual stream and normalise the sum, forward and backward."""
    tokens, width = (16, 24) if tiny else (TOKENS, HIDDEN)
    x_TH, y_TH = (_drawn(tokens, width, device=device).requires_grad_() for _ in range(2))
    norm = nn.RMSNorm(width, eps=1e-5, device=device, dtype=torch.bfloat16)

    def add_norm(leaves: Leaves) -> None:
        sum_TH, normed_TH = leaves.add_norm(x_TH, y_TH, norm)
        torch.autograd.grad((sum_TH + normed_TH).sum(), (x_TH, y_TH, norm.weight))

    return plain_and_compiled(add_norm, device)


def linear(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Compute a linear map, forward and backward, in bfloat16 and in float8."""
    tokens, inputs, outputs = (16, 32, 48) if tiny else (TOKENS, HIDDEN, INTERMEDIATE)
    x_TI = _drawn(tokens, inputs, device=device).requires_grad_()
    weight_OI = _drawn(outputs, inputs, device=device).requires_grad_()
    dy_TO = _drawn(tokens, outputs, device=device)

    def narrow() -> None:
        torch.autograd.grad(F.linear(x_TI, weight_OI), (x_TI, weight_OI), dy_TO)

    def float8(leaves: Leaves) -> None:
        y_TO = float8_linear(x_TI, weight_OI, None, leaves.quantize)
        torch.autograd.grad(y_TO, (x_TI, weight_OI), dy_TO)

    rounded = {f"float8, {name}": way for name, way in plain_and_compiled(float8, device).items()}
    return {"bfloat16": narrow, **rounded}


def weight_gradient(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Add a product of bfloat16 factors to a float32 gradient."""
    tokens, inputs, outputs = (16, 8, 24) if tiny else (TOKENS, HIDDEN, INTERMEDIATE)
    x_TI, dy_TO = _drawn(tokens, inputs, device=device), _drawn(tokens, outputs, device=device)
    gradient_OI = torch.zeros(outputs, inputs, device=device)
    return {
        "product in bfloat16, then added": lambda: gradient_OI.add_(dy_TO.T @ x_TI),
        "hydraulis": lambda: add_product_(gradient_OI, dy_TO.T, x_TI),
    }


def rank_sum(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Sum the addends of 8 tensor ranks."""
    addends_WtH = _drawn(8, *((4, 8) if tiny else (TOKENS // 8, HIDDEN)), device=device)
    return {
        "one kernel for each rank": lambda: _sum_in_order(addends_WtH),
        "one kernel": lambda: _sum_in_one_kernel(addends_WtH),
    }


def rank_copies(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Do one of 8 tensor ranks' work in collectives through symmetric buffers, all of them on this device."""
    x_TH = _drawn(*((16, 8) if tiny else (TOKENS, HIDDEN)), device=device)
    copied_TH, x_tH = torch.empty_like(x_TH), x_TH.chunk(8)[0]
    size = 1 << 12 if tiny else BUFFER_BYTES
    buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(8)]
    buffer = SymmetricBuffer(buffers, 0, lambda: None)
    return {
        "a copy of all tokens": lambda: copied_TH.copy_(x_TH),
        "all-gather": lambda: buffer.all_gather(x_tH),
        "reduce-scatter": lambda: buffer.reduce_scatter(x_TH, _sum_in_one_kernel),
    }


def packing(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Pack every other slice of a float32 buffer in bfloat16."""
    count, size = (8, 4) if tiny else (SLICES, PIECE // 8)
    flat = torch.zeros(2 * count * size, device=device)
    packed = torch.empty(count * size, dtype=torch.bfloat16, device=device)
    segments = np.array([[2 * size * i, size] for i in range(count)])

    def one_by_one() -> None:
        for i in range(count):
            packed[size * i : size * (i + 1)].copy_(flat[2 * size * i : 2 * size * i + size])

    return {"a copy for each slice": one_by_one, "hydraulis": lambda: pack(flat, segments, packed)}


def clipped_update(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Clip a gradient of 1 GiB, and update as many parameters by AdamW."""
    elements = 64 if tiny else 1 << 28
    master, gradient = (torch.zeros(elements, device=device) for _ in range(2))
    moments = {name: torch.zeros_like(master) for name in OptimizerConfig().moments}
    spans = [DecaySpan(0, elements, decayed=True)]
    rule = UpdateRule(master, gradient, moments, spans, OptimizerConfig())

    def scale_first() -> None:
        gradient.mul_(0.5)
        rule.step(1e-4)

    return {"scaled, then updated": scale_first, "hydraulis": lambda: rule.step(1e-4, 0.5)}


def reading(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Read and run 8 micro-batches, whose computation is as many products as 4 layers of Llama 3 8B have."""
    count, tokens, width = (3, 16, 8) if tiny else (8, TOKENS, HIDDEN)
    products = 4 if tiny else 50
    x_TH, weight_HH = _drawn(tokens, width, device=device), _drawn(width, width, device=device)
    lengths = [tokens - tokens // 4, tokens // 4]
    read = [np.arange(length) for length in lengths] * count
    stage = SimpleNamespace(lay_out=lambda given: lay_out(given, multiple=1, device=device))
    work: Any = SimpleNamespace(
        stage=stage,
        sequences=_Sequences(read),
        micro_batches=[[2 * index, 2 * index + 1] for index in range(count)],
    )

    def forward(batch: PackedMicroBatch | None) -> None:
        assert batch is not None
        x_TH.add_(batch.token_t[:, None])
        for _ in range(products):
            x_TH @ weight_HH

    def all_first() -> None:
        micro_batches = MicroBatches(work)
        batches = [micro_batches.take(0)]
        for index in range(1, count):
            micro_batches.read_next()
            batches.append(micro_batches.take(index))
        for batch in batches:
            forward(batch)

    def one_ahead() -> None:
        micro_batches = MicroBatches(work)
        for index in range(count):
            forward(micro_batches.take(index))
            micro_batches.read_next()

    return {"all before the first forward": all_first, "hydraulis, one ahead": one_ahead}


class _Sequences:
    """Sequences in memory, as `PlannedSequences` gives them."""

    def __init__(self, tokens: list[npt.NDArray[np.int64]]) -> None:
        self._tokens = tokens

    def length(self, sequence: int) -> int:
        return len(self._tokens[sequence])

    def __call__(self, sequence: int) -> npt.NDArray[np.int64]:
        return self._tokens[sequence]


def gradient_norm(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    """Compute the norms of the pieces of a gradient of 1 GiB."""
    pieces = torch.zeros((4 if tiny else 256) * (16 if tiny else PIECE), device=device).split(
        16 if tiny else PIECE
    )
    return {
        "a norm for each piece": lambda: [torch.linalg.vector_norm(piece) for piece in pieces],
        "one operation": lambda: torch._foreach_norm(pieces),
    }


def plain_and_compiled(work: Callable[[Leaves], None], device: torch.device) -> Ways:
    """Return the ways of work by leaves: torch's operations, and on CUDA Triton's kernels."""
    ways: Ways = {"hydraulis": lambda: work(PLAIN)}
    if device.type == "cuda":
        ways["hydraulis, compiled"] = lambda: work(compiled_leaves(device))
    return ways


def _drawn(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device=device)
