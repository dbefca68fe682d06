"""FlashAttention-3 and -4 without a device: packages of the same signatures that compute plain attention."""

import inspect
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import refused
from hydraulis.model.attention import hopper_flash
from hydraulis.model.attention.hopper_flash import FLASH_ATTENTION_3, FLASH_ATTENTION_4
from hydraulis.model.attention.kernel import Attended, AttentionKernel, AttentionMask, Heads, Segments
from hydraulis.model.attention.plain import PlainAttention
from hydraulis.model.attention.varlen import KERNELS, choose_kernel
from model.attention.reference import mask_of, random_heads


def attention_mask(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *longest: int, causal: bool) -> AttentionMask:
    """Build the mask of a call, and check its longest segments."""
    queries, keys = (Segments.from_lengths(x.diff().tolist(), "cpu") for x in (cu_seqlens_q, cu_seqlens_k))
    assert (queries.longest, keys.longest) == longest
    return AttentionMask(queries, keys, causal)


def pairs(mask: AttentionMask) -> list[tuple[slice, slice, bool]]:
    """List rows of queries and keys of each segment, and whether both are there."""
    found, row, column = [], 0, 0
    for queries, keys in zip(mask.queries.lengths, mask.keys.lengths, strict=True):
        found.append((slice(row, row + queries), slice(column, column + keys), queries * keys > 0))
        row, column = row + queries, column + keys
    return found


def attend(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float) -> tuple[Tensor, Tensor]:
    """Attend, with anything in the rows of queries without keys."""
    assert scale == q.shape[-1] ** -0.5
    o_TND, log_sum_exp_TN = PlainAttention().forward(Heads(q, k, v), mask)
    for rows, _, is_pair in pairs(mask):
        if not is_pair:
            o_TND[rows] = torch.nan
            log_sum_exp_TN[rows] = math.inf
    return o_TND, log_sum_exp_TN.T.contiguous()


def differentiate(
    do: Tensor, heads: Heads, o: Tensor, lse: Tensor, mask: AttentionMask, gradients: tuple[Tensor, ...]
) -> None:
    """Write the gradients, and leave them as they are where either side of a segment is empty."""
    assert do.is_contiguous()
    assert lse.is_contiguous()
    results = PlainAttention().backward(do, heads, Attended(o, lse.T), mask)
    for rows, columns, is_pair in pairs(mask):
        if is_pair:
            for place, value, part in zip(gradients, results, (rows, columns, columns), strict=True):
                place[part] = value[part]


class Package(ModuleType):
    """A package that records whether determinism was asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.deterministic: list[bool] = []

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Attend by the forward parameters that both packages have."""
        mask = attention_mask(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal)
        return attend(q, k, v, mask, softmax_scale)

    def differentiate(
        self,
        do: Tensor,
        heads: Heads,
        attended: tuple[Tensor, Tensor],
        *,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        causal: bool = False,
        deterministic: bool = False,
    ) -> None:
        """Write the gradients by the backward parameters that both packages have."""
        assert softmax_scale == heads.q_TND.shape[-1] ** -0.5
        self.deterministic.append(deterministic)
        mask = attention_mask(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal)
        differentiate(do, heads, *attended, mask, (dq, dk, dv))


class Package3(Package):
    """The two used functions of FlashAttention-3 with the parameters that are passed."""

    def __init__(self) -> None:
        super().__init__("flash_attn_interface")

    def _flash_attn_forward(
        self, q: Tensor, k: Tensor, v: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return *self.attend(q, k, v, **options), torch.empty(0), torch.empty(0)

    def _flash_attn_backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        softmax_lse: Tensor,
        *,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        self.differentiate(dout, Heads(q, k, v), (out, softmax_lse), causal=is_causal, **options)
        return torch.empty(0)


class Package4(Package):
    """The two used functions of FlashAttention-4 with the parameters that are passed."""

    def __init__(self) -> None:
        super().__init__("flash_attn.cute.interface")

    def _flash_attn_fwd(
        self, q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, **options: Any
    ) -> tuple[Tensor, Tensor | None, None, None, None]:
        o_TND, log_sum_exp_NT = self.attend(q, k, v, **options)
        return o_TND, log_sum_exp_NT if return_lse else None, None, None, None

    def _flash_attn_bwd(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, dout: Tensor, lse: Tensor, **options: Any
    ) -> tuple[Tensor, ...]:
        self.differentiate(dout, Heads(q, k, v), (out, lse), **options)
        return options["dq"], options["dk"], options["dv"]


PACKAGES: dict[str, tuple[AttentionKernel, Callable[[], Any]]] = {
    "3": (FLASH_ATTENTION_3, Package3),
    "4": (FLASH_ATTENTION_4, Package4),
}


@pytest.fixture(params=PACKAGES)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AttentionKernel:
    """Install a package, and give its kernel."""
    kernel, package = PACKAGES[request.param]
    module = package()
    *parents, _ = module.__name__.split(".")
    for number in range(len(parents)):
        name = ".".join(parents[: number + 1])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return kernel


MASKS = [
    mask_of([9, 30, 1], [9, 30, 1], causal=True),
    mask_of([5, 11], [15, 5], causal=False),
    mask_of([4, 0, 7, 2], [0, 6, 3, 0], causal=False),
]


@pytest.mark.parametrize("mask", MASKS, ids=["causal", "whole", "partly empty"])
def test_results_and_gradients_are_plain_attentions(kernel: AttentionKernel, mask: AttentionMask) -> None:
    heads, plain = random_heads(mask, 4, 2), PlainAttention()
    attended, expected = kernel.forward(heads, mask), plain.forward(heads, mask)
    assert attended.log_sum_exp_TN.is_contiguous()
    for value, other in zip(attended, expected, strict=True):
        assert torch.equal(value, other)
    # Of any strides, as autograd may pass it.
    do_TND = torch.randn(heads.q_TND.shape[::-1], dtype=torch.float64).permute(2, 1, 0)
    gradients = kernel.backward(do_TND, heads, attended, mask)
    for value, other in zip(gradients, plain.backward(do_TND, heads, expected, mask), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-12, atol=1e-12)


def test_determinism_is_asked_for_as_of_torch(kernel: AttentionKernel) -> None:
    heads = random_heads(MASKS[0], 4, 2)
    attended = kernel.forward(heads, MASKS[0])
    for is_deterministic in (False, True):
        torch.use_deterministic_algorithms(is_deterministic)
        try:
            kernel.backward(attended.o_TND, heads, attended, MASKS[0])
        finally:
            torch.use_deterministic_algorithms(False)
    name = "flash_attn_interface" if kernel.kind == "flash-attn-3" else "flash_attn.cute.interface"
    package: Any = sys.modules[name]
    assert package.deterministic == [False, True]


@pytest.mark.parametrize(
    ("version", "oldest", "taken"),
    [
        ("4.0.0b36", "4.0.0b19", True),
        ("4.0.0b19", "4.0.0b19", True),
        ("4.0.0b9", "4.0.0b19", False),
        ("4.0.0", "4.0.0b19", True),
        ("4.1.0b1", "4.0.0b19", True),
        ("3.0.0", "3.0.0", True),
        ("3.0.0+cu130torch2.13", "3.0.0", True),
        ("3.0.0b1", "3.0.0", False),
    ],
)
def test_versions_of_other_signatures_are_none(version: str, oldest: str, *, taken: bool) -> None:
    assert (hopper_flash._numbers(version) >= hopper_flash._numbers(oldest)) == taken


@pytest.mark.parametrize(
    ("capability", "head_dim", "kind"),
    [
        ((9, 0), 128, "flash-attn-3"),
        ((9, 0), 256, "flash-attn-3"),
        ((10, 0), 128, "flash-attn-4"),
        ((10, 0), 256, "torch-flash"),
        ((8, 0), 128, "torch-flash"),
        ((12, 0), 128, "torch-flash"),
        ((9, 0), 100, "plain"),
    ],
)
def test_the_newest_kernel_of_the_device_is_chosen(
    capability: tuple[int, int], head_dim: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(hopper_flash, "_is_installed", lambda *_: True)
    with FakeTensorMode():
        q_TND = torch.empty(0, 1, head_dim, dtype=torch.bfloat16, device="cuda")
        assert choose_kernel(q_TND).kind == kind


@pytest.mark.parametrize(
    ("capability", "head_dim", "is_right"),
    [((9, 0), head_dim, head_dim not in (8, 16, 40, 48, 72, 80, 104, 112)) for head_dim in range(8, 257, 8)]
    + [((10, 0), head_dim, True) for head_dim in range(8, 129, 8)],
)
def test_head_dims_with_wrong_gradients_are_refused(
    capability: tuple[int, int], head_dim: int, monkeypatch: pytest.MonkeyPatch, *, is_right: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(hopper_flash, "_is_installed", lambda *_: True)
    with FakeTensorMode():
        q_TND = torch.empty(0, 1, head_dim, dtype=torch.bfloat16, device="cuda")
        refusal = FLASH_ATTENTION_4.refusal(q_TND)
        assert refusal is None if is_right else f"wrong for head dims such as {head_dim}" in str(refusal)


@pytest.mark.parametrize("kind", ["flash-attn-3", "flash-attn-4"])
def test_a_missing_package_is_named(kind: Any) -> None:
    with refused("attention_unsupported", kind):
        choose_kernel(torch.empty(0, 1, 64), kind)


def test_every_kernel_has_the_protocols_parameters() -> None:
    for kernel in KERNELS:
        for name in ("forward", "backward", "refusal"):
            expected = inspect.signature(getattr(AttentionKernel, name)).parameters
            assert list(inspect.signature(getattr(kernel, name)).parameters) == list(expected)[1:]
