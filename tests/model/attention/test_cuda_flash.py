"""Properties of the CUDA kernels without a device: shapes from torch's shape functions, and refusals."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import refused
from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention import cuda_flash
from hydraulis.model.attention.cuda_flash import FlashAttnPackage, TorchFlash
from hydraulis.model.attention.kernel import AttentionKernel
from hydraulis.model.attention.varlen import KERNELS, choose_kernel
from model.attention.reference import mask_of, random_heads


class RecordedPackage(ModuleType):
    """The two used functions of flash-attn 2.8 with their parameters, returning shapes only."""

    def __init__(self) -> None:
        super().__init__("flash_attn.flash_attn_interface")
        self.calls: list[dict[str, Any]] = []

    def _flash_attn_varlen_forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,  # noqa: FBT001
    ) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        self.calls.append(dict(locals()))
        return torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32), None, None

    def _flash_attn_varlen_backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        softmax_lse: torch.Tensor,
        dq: torch.Tensor,
        dk: torch.Tensor,
        dv: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,  # noqa: FBT001
        window_size_left: int,
        window_size_right: int,
        softcap: float,
        alibi_slopes: None,
        deterministic: bool,  # noqa: FBT001
    ) -> torch.Tensor:
        self.calls.append(dict(locals()))
        return torch.empty(0)


def assert_shapes(kernel: AttentionKernel) -> None:
    mask = mask_of([5, 11], [15, 5], causal=False, device="cuda")
    heads = random_heads(mask, 8, 2, torch.bfloat16, "cuda")
    attended = kernel.forward(heads, mask)
    assert (attended.o_TND.shape, attended.log_sum_exp_TN.shape) == (heads.q_TND.shape, (16, 8))
    assert attended.log_sum_exp_TN.dtype == torch.float32
    gradients = kernel.backward(torch.empty_like(attended.o_TND), heads, attended, mask)
    assert [x.shape for x in gradients] == [x.shape for x in heads]


class RecordedOps(TorchDispatchMode):
    """Records the arguments of torch's flash attention."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, tuple[Any, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] = args
        return func(*args, **(kwargs or {}))


def test_torchs_own_shape_functions_take_the_call() -> None:
    with FakeTensorMode(), RecordedOps() as recorded:
        assert_shapes(TorchFlash())
    _, _, _, *segments, dropout, causal = recorded.calls["_flash_attention_forward"][:9]
    assert (segments[2:], dropout, causal) == ([11, 15], 0.0, False)
    log_sum_exp_NT = recorded.calls["_flash_attention_backward"][5]
    assert log_sum_exp_NT.shape == (8, 16)
    assert log_sum_exp_NT.is_contiguous()


def test_a_call_never_states_that_each_segment_has_one_query() -> None:
    # If the longest segment has one query, both libraries group queries by segment.
    mask = mask_of([1, 0, 1], [3, 4, 2], causal=False, device="cpu")
    assert cuda_flash._boundaries(mask)[2:] == (2, 4)


def test_the_package_is_called_by_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    package = RecordedPackage()
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", package)
    with FakeTensorMode():
        assert_shapes(FlashAttnPackage())
    assert len(package.calls) == 2
    for call in package.calls:
        assert (call["max_seqlen_q"], call["max_seqlen_k"]) == (11, 15)
        assert call["softmax_scale"] == 0.25
        assert call["causal"] is False
        assert call["dropout_p"] == 0.0
    assert package.calls[1]["softmax_lse"].shape == (8, 16)


@pytest.mark.parametrize(
    ("named", "version", "taken"),
    [
        ("flash_attn", "2.8.3.post2", True),
        ("flash_attn", "2.7.0+cu13torch2.11", True),
        ("flash_attn", "2.6.3", False),
        # Another package with the same folder name.
        ("flash_attn_4", "4.0.0b36", False),
    ],
)
def test_a_package_without_the_two_functions_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, version: str, *, taken: bool
) -> None:
    (tmp_path / "flash_attn").mkdir()
    described = tmp_path / f"{named}-{version}.dist-info"
    described.mkdir()
    facts = f"Metadata-Version: 2.1\nName: {named.replace('_', '-')}\nVersion: {version}\n"
    (described / "METADATA").write_text(facts)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cuda_flash._package_is_installed.__wrapped__() == taken


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize(
    ("dtype", "installed", "name"),
    [
        (torch.bfloat16, True, "flash-attn"),
        (torch.bfloat16, False, "torch's flash attention"),
        (torch.float16, False, "torch's flash attention"),
        (torch.float32, True, "plain attention"),
        (torch.float64, False, "plain attention"),
    ],
)
def test_the_best_kernel_that_fits_is_chosen(
    dtype: torch.dtype, name: str, monkeypatch: pytest.MonkeyPatch, *, installed: bool
) -> None:
    monkeypatch.setattr(cuda_flash, "_package_is_installed", lambda: installed)
    with FakeTensorMode():
        assert choose_kernel(torch.empty(4, 2, 64, dtype=dtype, device="cuda")).name == name


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("head_dim", [12, 264])
def test_head_dims_that_flash_cannot_take_are_computed_plainly(head_dim: int) -> None:
    with FakeTensorMode():
        q_TND = torch.empty(4, 2, head_dim, dtype=torch.bfloat16, device="cuda")
        assert choose_kernel(q_TND).kind == "plain"
        with refused("attention_unsupported", 8, 256, "train.attention = 'torch-flash'"):
            choose_kernel(q_TND, "torch-flash")


def test_devices_that_are_too_old_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with FakeTensorMode():
        q_TND = torch.empty(4, 2, 64, dtype=torch.bfloat16, device="cuda")
        assert choose_kernel(q_TND).kind == "plain"
        with refused("attention_unsupported", "8.0"):
            choose_kernel(q_TND, "torch-flash")


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.kind)
def test_the_requested_kernel_is_chosen_or_refused(
    kernel: AttentionKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_flash, "_package_is_installed", lambda: True)
    with FakeTensorMode():
        for device in ("cpu", "cuda"):
            q_TND = torch.empty(4, 2, 64, dtype=torch.bfloat16, device=device)
            refusal = kernel.refusal(q_TND)
            if refusal is None:
                assert choose_kernel(q_TND, kernel.kind) is kernel
                continue
            with refused("attention_unsupported", refusal):
                choose_kernel(q_TND, kernel.kind)


def test_every_kernel_can_be_requested() -> None:
    assert {kernel.kind for kernel in KERNELS} | {"auto"} == set(get_args(AttentionKind))
