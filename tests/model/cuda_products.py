"""The two matrix products that torch has on CUDA only, computed on the CPU by their definition."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, library

from hydraulis.model import tensors

NARROW = [torch.bfloat16, torch.float16]


@pytest.fixture
def cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the CPU the two kernels that torch has on CUDA only, by their definition."""

    def mm(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
        return left.to(dtype) @ right.to(dtype)

    def addmm(total: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype, *, out: Tensor) -> Tensor:
        return out.copy_(total + mm(left, right, dtype))

    kernels = library.Library("aten", "IMPL")
    kernels.impl("mm.dtype", mm, "CPU")
    kernels.impl("addmm.dtype_out", addmm, "CPU")
    monkeypatch.setattr(tensors, "has_wide_kernel", lambda factor, _: factor.dtype in NARROW)
    yield
    kernels._destroy()
