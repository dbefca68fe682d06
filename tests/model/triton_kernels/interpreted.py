"""Runs the leaves' kernels by Triton's interpreter, on the CPU, and prints how far they are from exact.

    TRITON_INTERPRET=1 python -m model.triton_kernels.interpreted

Triton reads the variable when it is imported, so this is a process of its own. It prints one JSON object: for
each leaf, dtype and shape the relative distances of its results, and of torch's operations in the dtype,
from torch's operations in float64; and comparisons of decoders and of saved bytes.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from hydraulis import Scheme
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.model.float8 import Quantized
from hydraulis.model.leaves import PLAIN, Leaves, compiled_leaves
from hydraulis.model.rope import rotary_table
from hydraulis.model.sequences import IGNORE_INDEX, PackedSequences
from hydraulis.parallel.checkpointing import apply_checkpointing
from hydraulis.parallel.vocabulary import VocabularyShare, vocab_parallel_loss
from parallel.vocabulary_workers import by_kernels
from ranks import run_ranks
from runtime.devices_workers import train, train_compiled
from small_model import build_decoder, logits_of, random_tokens, small_config, token_loss
from stage_bytes import stage_bytes

# Results of a leaf for drawn inputs.
Results = Callable[[Leaves, Sequence[Tensor]], tuple[Tensor, ...]]
# Tokens and heads, and heads of 6, 16 and 96 elements: not all are powers of 2.
HEADS = [(7, 5, 6), (3, 8, 16), (2, 40, 96)]
# Rows that are longer and shorter than a program's block.
ROWS = [(6, 42), (3, 1024), (2, 1200)]
FACTORS = [(5, 48), (3, 4100)]


def rotate(direction: int) -> Results:
    """Rotate heads in a direction."""

    def results(leaves: Leaves, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x_TND,) = given
        config = small_config(head_dim=x_TND.shape[-1])
        table = rotary_table(torch.arange(3, 3 + len(x_TND)), config, x_TND.dtype)
        return (leaves.rotate(x_TND, table.cos_TD, table.sin_TD, direction),)

    return results


def multiply(leaves: Leaves, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute the gated product."""
    gate_TI, up_TI = given
    return (leaves.product.multiply(gate_TI, up_TI),)


def gradients_of_product(leaves: Leaves, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute the gradients of the gated product."""
    dproduct_TI, gate_TI, up_TI = given
    return leaves.product.gradients(dproduct_TI, gate_TI, up_TI)


def add_norm(leaves: Leaves, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Add and normalise, and compute the gradients of the inputs."""
    *addends, weight_TH = (x.clone().requires_grad_() for x in given)
    norm = torch.nn.RMSNorm(weight_TH.shape[-1], eps=1e-5)
    norm.weight = torch.nn.Parameter(weight_TH[0].detach())
    x_TH, y_TH = addends if len(addends) == 2 else (addends[0], None)
    sum_TH, normed_TH = leaves.add_norm(x_TH, y_TH, norm)
    both = torch.stack((sum_TH, normed_TH))
    weights = torch.linspace(-1, 2, both.numel(), dtype=torch.float64).to(both.dtype).view_as(both)
    gradients = torch.autograd.grad(both, [*addends, norm.weight], weights)
    return sum_TH.detach(), normed_TH.detach(), *gradients


def loss(leaves: Leaves, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute the loss of a head, a chunk at a time, and the gradients of hidden states and head."""
    hidden_TH = given[0].clone().requires_grad_()
    tokens, rows = len(hidden_TH), 1100
    numbers = torch.arange(rows * hidden_TH.shape[-1], dtype=torch.float64)
    weight_VH = numbers.sin_().view(rows, -1).to(hidden_TH.dtype).requires_grad_()
    target_T = torch.arange(tokens) * 7 % rows
    target_T[::5] = IGNORE_INDEX
    share = VocabularyShare(rows, 0, None)
    found = vocab_parallel_loss(hidden_TH, weight_VH, target_T, tokens, share, leaves.loss)
    return found.detach(), *torch.autograd.grad(found, [hidden_TH, weight_VH])


def add_rows(leaves: Leaves, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Add the tokens' rows to those of an embedding's gradient."""
    (addend_TH,) = given
    wide = torch.promote_types(addend_TH.dtype, torch.float32)
    total_VH = torch.linspace(-1, 2, 5 * addend_TH.shape[-1], dtype=wide).view(5, -1)
    # Row 4 has no token, and row 0 the most.
    token_T = (torch.arange(len(addend_TH)) * 7 % 11 - 7).clamp(min=0)
    if leaves.add_rows is None:
        total_VH.index_add_(0, token_T, addend_TH.to(wide))
    else:
        leaves.add_rows(total_VH, token_T, addend_TH)
    return (total_VH,)


# Results, shapes and the number of inputs of each leaf.
LEAVES: dict[str, tuple[Results, Sequence[tuple[int, ...]], int]] = {
    "rotate": (rotate(1), HEADS, 1),
    "rotate back": (rotate(-1), HEADS, 1),
    "norm": (add_norm, ROWS, 2),
    "sum and norm": (add_norm, ROWS, 3),
    "norm of more rows than programs": (add_norm, [(540, 4), (5, 10), (2, 8)], 3),
    "loss": (loss, [(13, 6), (40, 10), (130, 2)], 1),
    "add rows": (add_rows, [(13, 6), (40, 130), (130, 2)], 1),
    "multiply": (multiply, ROWS, 2),
    "gradients": (gradients_of_product, ROWS, 3),
}


def distances(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Return the relative distance of each result."""
    return [
        float((one.double() - other).norm() / other.norm()) for one, other in zip(found, exact, strict=True)
    ]


def of_leaves() -> list[dict[str, object]]:
    """Compare each leaf in each dtype, on each shape."""
    rows: list[dict[str, object]] = []
    for name, (results, shapes, count) in LEAVES.items():
        for shape in shapes:
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                given = [torch.randn(shape).to(dtype) for _ in range(count)]
                # Another order in memory than a kernel's.
                given[0] = given[0].transpose(0, 1).contiguous().transpose(0, 1)
                found, plain = (
                    results(leaves, given) for leaves in (compiled_leaves(torch.empty(0).device), PLAIN)
                )
                assert [(x.dtype, x.shape) for x in found] == [(x.dtype, x.shape) for x in plain]
                exact = results(PLAIN, [x.double() for x in given])
                rows.append(
                    {
                        "leaf": name,
                        "dtype": str(dtype),
                        "found": distances(found, exact),
                        "plain": distances(plain, exact),
                    }
                )
    return rows


def of_rounding() -> list[dict[str, object]]:
    """Compare float8 factors: the scales, and the elements, of which the interpreter drops bits."""
    rows: list[dict[str, object]] = []
    for shape in FACTORS:
        x_RC = torch.randn(shape).bfloat16() * torch.logspace(-9, 9, len(torch.empty(shape)))[:, None]
        x_RC[0] = 0
        for given in (x_RC, x_RC.t().contiguous().t()):
            found, plain = (
                leaves.quantize(given) for leaves in (compiled_leaves(torch.empty(0).device), PLAIN)
            )
            assert isinstance(found, Quantized)
            assert found.value_RC.is_contiguous()
            rows.append(
                {
                    "scales": torch.equal(found.scale_R1, plain.scale_R1),
                    "values": distances([found.value_RC.float()], [plain.value_RC.double()])[0],
                }
            )
    return rows


def of_decoders() -> dict[str, float]:
    """Compare a decoder's gradients under each kind of checkpointing, in float64: the largest distance."""
    config = small_config(qk_norm=True)
    token_T, _ = random_tokens(config, [5, 4], padded=False)

    def gradients(leaves: Leaves, checkpointing: CheckpointingKind) -> dict[str, Tensor]:
        model = build_decoder(config)
        model.use_leaves(leaves)
        apply_checkpointing(model, Scheme("<1>").with_checkpointing(checkpointing))
        logits_of(model, token_T, PackedSequences.from_lengths([5, 4], "cpu")).square().sum().backward()
        return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}

    plain = gradients(PLAIN, "none")
    found: dict[str, float] = {}
    kinds: tuple[CheckpointingKind, ...] = ("none", "selective", "full")
    for kind in kinds:
        ours = gradients(compiled_leaves(torch.empty(0).device), kind)
        assert ours.keys() == plain.keys()
        found[kind] = max(distances(list(ours.values()), list(plain.values())))
    return found


def of_split_vocabulary() -> list[float]:
    """Compare a loss that is split over two ranks with the whole one, in float64; large logits."""
    hidden_TH, weight_VH = (torch.randn(shape, dtype=torch.float64) for shape in ((20, 6), (21, 6)))
    target_T = torch.arange(20) * 5 % 21
    target_T[::7] = IGNORE_INDEX
    inputs = 1000 * hidden_TH, weight_VH, target_T
    found = run_ranks(2, by_kernels, *inputs, 11)
    whole = [x.clone().requires_grad_() for x in inputs[:2]]
    expected = token_loss(whole[0] @ whole[1].T, target_T, 11)
    gradients = torch.autograd.grad(3.0 * expected, whole)
    split = [torch.cat(parts) for parts in zip(*(rank[1:] for rank in found), strict=True)]
    losses = distances([rank[0] for rank in found], [expected.detach()] * 2)
    return [*losses, *distances(split, gradients), float(found[0][0] - found[1][0])]


def _flat(values: dict[str, Tensor]) -> list[Tensor]:
    return [torch.cat([values[name].flatten() for name in sorted(values)])]


def of_ranks() -> dict[str, float]:
    """Compare steps of ranks with one rank by torch's operations, in float64: the largest distance."""
    config = small_config(head_dim=8, num_hidden_layers=2)
    lengths = (7, 5, 3, 2)
    found: dict[str, float] = {}
    runs: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "schemes": (("1x<tp2,full>", "1x<pp2>", "1x<cp2>", "2x<1,selective>"), {}),
        "frozen": (("1x<tp2>",), {"frozen": ("*norm.weight", "model.layers.0.*")}),
        "sharded": (("2x<1>", "2x<1,full>"), {"sharding": "parameters"}),
    }
    for name, (strategies, settings) in runs.items():
        arguments = ("cpu", config, strategies, lengths, torch.float64)
        alone = ["1x<1>"] * len(strategies)
        ours = run_ranks(2, partial(train_compiled, **settings), *arguments)[0]
        plain = {key: value for key, value in settings.items() if key != "sharding"}
        (expected,) = run_ranks(1, partial(train, **plain), "cpu", config, alone, lengths, torch.float64)
        pairs = list(zip(ours.gradients, expected.gradients, strict=True))
        pairs.append((ours.parameters, expected.parameters))
        assert all(one.keys() == other.keys() != set() for one, other in pairs)
        found[name] = max(distance for pair in pairs for distance in distances(*map(_flat, pair)))
    return found


def of_stages() -> list[int]:
    """Count the bytes that a model saves for backward, by torch's operations and by the kernels."""
    plain = stage_bytes(64)
    with patch("stage_bytes.KINDS", {"compiles": True}):
        return [plain, stage_bytes(64)]


def main() -> None:
    """Print all comparisons."""
    torch.manual_seed(0)
    parts = (of_leaves, of_rounding, of_decoders, of_split_vocabulary, of_ranks, of_stages)
    sys.stdout.write(json.dumps({part.__name__: part() for part in parts}))


if __name__ == "__main__":
    main()
