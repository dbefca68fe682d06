"""The CUDA kernels on a device, against the reference in float64."""

import pytest
import torch

from devices import on_cuda
from hydraulis.model.attention.cuda_flash import FlashAttnPackage, TorchFlash
from hydraulis.model.attention.hopper_flash import FLASH_ATTENTION_3, FLASH_ATTENTION_4
from hydraulis.model.attention.kernel import AttentionKernel, Heads
from hydraulis.model.attention.plain import PlainAttention
from model.attention.reference import expected_gradients, mask_of, masked_softmax, random_heads

pytestmark = [*on_cuda]
KERNELS: list[tuple[AttentionKernel, torch.dtype, float]] = [
    (FLASH_ATTENTION_3, torch.bfloat16, 3e-2),
    (FLASH_ATTENTION_4, torch.bfloat16, 3e-2),
    (FlashAttnPackage(), torch.bfloat16, 3e-2),
    (TorchFlash(), torch.bfloat16, 3e-2),
    (TorchFlash(), torch.float16, 4e-3),
    (PlainAttention(), torch.float32, 1e-4),
    (PlainAttention(), torch.float64, 1e-11),
    (PlainAttention(), torch.bfloat16, 3e-2),
    (PlainAttention(block_scores=1000), torch.float64, 1e-11),
]
MASKS = [
    ([1], [1], True),
    ([1, 1, 1], [1, 1, 1], True),
    ([13, 1, 7, 300], [13, 1, 7, 300], True),
    ([13, 1, 7, 300], [200, 3, 1, 64], False),
    ([5, 2], [0, 9], False),
    ([0, 4], [3, 9], False),
    ([1, 0, 1], [3, 4, 2], False),
    ([1, 0], [1, 0], True),
]


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize(("queries", "keys", "causal"), MASKS)
@pytest.mark.parametrize("num_heads", [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize(
    ("kernel", "dtype", "tolerance"), KERNELS, ids=[f"{one.name}-{dtype}" for one, dtype, _ in KERNELS]
)
def test_a_kernel_equals_the_reference_on_the_device(
    kernel: AttentionKernel,
    dtype: torch.dtype,
    tolerance: float,
    num_heads: tuple[int, int],
    queries: list[int],
    keys: list[int],
    head_dim: int,
    *,
    causal: bool,
) -> None:
    mask = mask_of(queries, keys, causal=causal, device="cuda")
    heads = random_heads(mask, *num_heads, dtype, "cuda", head_dim)
    refusal = kernel.refusal(heads.q_TND)
    if refusal is not None:
        pytest.skip(refusal)
    attended = kernel.forward(heads, mask)
    exact = Heads(*(x.double() for x in heads))
    for value, expected in zip(attended, masked_softmax(exact, mask), strict=True):
        torch.testing.assert_close(value.double(), expected, rtol=tolerance, atol=tolerance)
    do_TND = torch.randn_like(attended.o_TND)
    gradients = kernel.backward(do_TND, heads, attended, mask)
    expected_gradient = expected_gradients(exact, mask, do_TND.double())
    for gradient, expected in zip(gradients, expected_gradient, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), expected, rtol=3 * tolerance, atol=3 * tolerance)
