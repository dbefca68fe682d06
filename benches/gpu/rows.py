"""Short pieces of work, each done in several ways: a list that a new kernel adds a row to.

A row makes its inputs once and names the ways to compute the same. The first way is the plain one; the others
are compared with it in time. Equality is a matter of the tests, not of this list.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from benches.gpu import layer_pieces
from benches.gpu.workload import Clock

from hydraulis.model.leaves import Leaves
from hydraulis.model.sequences import IGNORE_INDEX
from hydraulis.parallel.vocabulary import VocabularyShare, vocab_parallel_loss

Ways = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of work.

    Attributes:
        name: Name of the work.
        make: Function that makes the inputs on a device, and returns the ways to do the work. The flag asks
            for inputs that are small enough for a CPU.
        flops: Operations of the work, for TFLOP/s; None if they do not matter.
        moved_bytes: Bytes that the work moves at least, for GB/s; None if they do not matter.
    """

    name: str
    make: Callable[[torch.device, bool], Ways]
    flops: float | None = None
    moved_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRow:
    """One way of a piece.

    Attributes:
        piece: Name of the piece.
        way: Name of the way.
        ms: The median; 0 if it was not measured.
        tflops: Operations of the piece over that time.
        gigabytes_per_s: Bytes of the piece over that time.
        refusal: Reason why it was not measured; None if it was.
    """

    piece: str
    way: str
    ms: float = 0.0
    tflops: float | None = None
    gigabytes_per_s: float | None = None
    refusal: str | None = None


def measure_pieces(device: torch.device, clock: Clock, *, tiny: bool) -> list[PieceRow]:
    """Time every way of every piece; one that fails is a row too."""
    rows: list[PieceRow] = []
    for piece in PIECES:
        rows += measure_piece(piece, device, clock, tiny=tiny)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def measure_piece(piece: Piece, device: torch.device, clock: Clock, *, tiny: bool) -> list[PieceRow]:
    """Time every way of a piece; one that fails is a row too."""
    try:
        ways = piece.make(device, tiny)
    except Exception as error:
        return [PieceRow(piece=piece.name, way="its inputs", refusal=_said(error))]
    return [_measure(piece, way, work, clock, tiny=tiny) for way, work in ways.items()]


def _measure(piece: Piece, way: str, work: Callable[[], object], clock: Clock, *, tiny: bool) -> PieceRow:
    try:
        ms = clock.median_ms(work)
    except Exception as error:
        return PieceRow(piece=piece.name, way=way, refusal=_said(error))
    return PieceRow(
        piece=piece.name,
        way=way,
        ms=ms,
        tflops=None if piece.flops is None or tiny else piece.flops / ms / 1e9,
        gigabytes_per_s=None if piece.moved_bytes is None or tiny else piece.moved_bytes / ms / 1e6,
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


_WIDTH, _COPIED = 8192, 1 << 30


def _product(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    width = 64 if tiny else _WIDTH
    left, right = (torch.randn(width, width, device=device) for _ in range(2))
    narrow_left, narrow_right = left.bfloat16(), right.bfloat16()
    return {
        "float32": lambda: left @ right,
        "bfloat16, the default on CUDA": lambda: narrow_left @ narrow_right,
    }


def _copy(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    source = torch.empty(1024 if tiny else _COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return {"torch": lambda: target.copy_(source)}


def _head_loss(device: torch.device, tiny: bool) -> Ways:  # noqa: FBT001 - the signature of all pieces
    tokens, width, vocabulary = (64, 32, 96) if tiny else (8192, 4096, 128_256)
    hidden_TH = torch.randn(tokens, width, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight_VH = torch.randn(vocabulary, width, dtype=torch.bfloat16, device=device, requires_grad=True)
    target_T = torch.randint(vocabulary, (tokens,), device=device)
    share = VocabularyShare(vocabulary, 0, None)

    def whole() -> None:
        logits_TV = (hidden_TH @ weight_VH.T).float()
        loss = F.cross_entropy(logits_TV, target_T, ignore_index=IGNORE_INDEX, reduction="sum") / tokens
        torch.autograd.grad(loss, (hidden_TH, weight_VH))

    def chunked(leaves: Leaves) -> None:
        loss = vocab_parallel_loss(hidden_TH, weight_VH, target_T, tokens, share, leaves.loss)
        torch.autograd.grad(loss, (hidden_TH, weight_VH))

    own = layer_pieces.plain_and_compiled(chunked, device)
    return {"torch's cross entropy of whole logits": whole, **own}


PIECES: list[Piece] = [
    Piece(name="product, 8,192 wide", make=_product, flops=2.0 * _WIDTH**3),
    Piece(name="copy of 1 GiB", make=_copy, moved_bytes=2.0 * _COPIED),
    Piece(name="head loss, Llama 3's vocabulary", make=_head_loss, flops=6.0 * 8192 * 4096 * 128_256),
    Piece(
        name="head loss by size of chunks", make=layer_pieces.head_chunks, flops=6.0 * 8192 * 4096 * 128_256
    ),
    Piece(name="gradient of an embedding, Llama 3's vocabulary", make=layer_pieces.embedding),
    Piece(name="SwiGLU, forward and backward", make=layer_pieces.swiglu),
    Piece(name="rotation of 32 heads, forward and backward", make=layer_pieces.rotation),
    Piece(name="residual sum and norm, forward and backward", make=layer_pieces.residual_norm),
    Piece(
        name="linear map, forward and backward", make=layer_pieces.linear, flops=6.0 * 8192 * 4096 * 14_336
    ),
    Piece(
        name="weight gradient in float32", make=layer_pieces.weight_gradient, flops=2.0 * 8192 * 4096 * 14_336
    ),
    Piece(name="sum of 8 tensor ranks", make=layer_pieces.rank_sum),
    Piece(name="copies of a tensor rank of 8, on one device", make=layer_pieces.rank_copies),
    Piece(name="1,024 slices packed", make=layer_pieces.packing),
    Piece(name="clipped update of 1 GiB of parameters", make=layer_pieces.clipped_update),
    Piece(name="8 micro-batches read and run", make=layer_pieces.reading),
    Piece(name="norms of a gradient of 1 GiB", make=layer_pieces.gradient_norm, moved_bytes=2.0**30),
]
