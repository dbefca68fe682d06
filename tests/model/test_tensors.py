"""Wide products: equal to the plain ones on the CPU, and one kernel each on CUDA; host memory for copies."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import hydraulis
from helpers import at_least, refused
from hydraulis.data.collate import lay_out
from hydraulis.model.tensors import add_product_, empty_on_host, to_device, wide_product
from hydraulis.parallel.offload import HostPages
from model.cuda_products import NARROW, cuda_kernels
from model.operations import Operations

__all__ = ["cuda_kernels"]


def factors(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(5, 300).to(dtype), torch.randn(300, 4).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_wide_factors_equal_torchs(dtype: torch.dtype) -> None:
    left, right = factors(dtype)
    assert torch.equal(wide_product(left, right, dtype), left @ right)
    total = torch.randn(5, 4, dtype=dtype)
    expected = total.addmm(left, right)
    add_product_(total, left, right)
    assert torch.equal(total, expected)


@pytest.mark.parametrize("dtype", NARROW)
def test_products_of_narrow_factors_are_rounded_to_their_dtype_on_the_cpu(dtype: torch.dtype) -> None:
    left, right = factors(dtype)
    assert torch.equal(wide_product(left, right, torch.float32), (left @ right).float())
    total = torch.ones(5, 4)
    add_product_(total, left, right)
    assert torch.equal(total, 1 + (left @ right).float())


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.usefixtures("cuda_kernels")
def test_the_kernels_of_cuda_do_not_round(dtype: torch.dtype) -> None:
    left, right = factors(dtype)
    exact = left.double() @ right.double()
    product, total = wide_product(left, right, torch.float32), torch.ones(5, 4)
    add_product_(total, left, right)
    torch.testing.assert_close(product.double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(total.double(), 1 + exact, rtol=1e-5, atol=1e-4)
    # The plain path rounds: it is further from the exact product.
    assert (product - exact).norm() < 1e-2 * ((left @ right).float() - exact).norm()


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        (torch.bfloat16, ["aten.mm.dtype", "aten.addmm.dtype_out"]),
        (torch.float32, ["aten.mm.default", "aten.addmm_.default"]),
    ],
)
@pytest.mark.usefixtures("shapes_of_products")
def test_each_is_one_operation_on_cuda_that_makes_no_second_total(
    dtype: torch.dtype, names: list[str]
) -> None:
    with FakeTensorMode():
        left, right = (torch.empty(shape, dtype=dtype, device="cuda") for shape in ((5, 3), (3, 4)))
        total = torch.empty(5, 4, device="cuda")
        with Operations() as operations:
            product = wide_product(left, right, torch.float32)
            add_product_(total, left, right)
    assert operations.names == names
    assert (product.dtype, product.shape) == (torch.float32, total.shape)


CUDA = torch.device("cuda", 0)


def no_memory_to_pin(*_: object, pin_memory: bool = False, **__: object) -> Tensor:
    """Fail as torch does where cudaHostAlloc finds no memory."""
    assert pin_memory
    message = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com"
    raise torch.AcceleratorError(message)


@pytest.mark.parametrize(
    ("pin", "mib"),
    [
        (lambda: empty_on_host([3 << 18], torch.float32, is_pinned=True), 3),
        (lambda: to_device(torch.ones(4 << 20, dtype=torch.uint8), CUDA), 4),
        (lambda: HostPages(CUDA).take(1), 16),
        (lambda: lay_out([5, 4], multiple=1, device=CUDA), 1),
    ],
)
def test_a_host_without_memory_to_pin_is_named_with_the_remedy_of_the_host(
    monkeypatch: pytest.MonkeyPatch, pin: Callable[[], object], mib: int
) -> None:
    monkeypatch.setattr(torch, "empty", no_memory_to_pin)
    with refused("out_of_device_memory", f"no {mib} MiB of memory left to pin", "host_memory_mib") as caught:
        pin()
    # No plan for less device memory would help.
    assert "planner.memory_mib" not in str(caught.value)


def test_another_failure_of_host_memory_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Tensor:
        raise RuntimeError(texts.pop())

    monkeypatch.setattr(torch, "empty", fail)
    texts = ["CUDA error: invalid argument", "CUDA error: out of memory"]
    # Memory that is not pinned is not CUDA's.
    for is_pinned, text in ((False, texts[1]), (True, texts[0])):
        with pytest.raises(RuntimeError, match=text):
            empty_on_host([4], torch.float32, is_pinned=is_pinned)


def test_one_function_pins_all_memory() -> None:
    sources = at_least(100, Path(hydraulis.__file__).parent.rglob("*.py"))
    pinning = [path.name for path in sources if re.search(r"pin_memory\s*[=(]", path.read_text())]
    assert pinning == ["tensors.py"]
