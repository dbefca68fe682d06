"""Wide products: equal to the plain ones on the CPU, and one kernel each on CUDA."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hydraulis.model.tensors import add_product_, wide_product
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
