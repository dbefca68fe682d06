import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hydraulis.parallel import collectives
from hydraulis.parallel.collectives import all_gather_tokens, reduce_scatter_tokens
from parallel.collectives_workers import (
    gather,
    scatter,
    scatter_addends,
    scatter_both_ways,
    scatter_uneven,
)
from ranks import run_ranks

X = torch.randn(6, 4, dtype=torch.float64)
WEIGHT = torch.randn(6, 4, dtype=torch.float64)


@pytest.mark.devices
def test_gather_joins_in_rank_order_and_its_backward_sums() -> None:
    results = run_ranks(3, gather, X, WEIGHT)
    assert all(torch.equal(gathered, X) for gathered, _ in results)
    gradient = torch.cat([gradient for _, gradient in results])
    torch.testing.assert_close(gradient, WEIGHT * (1 + 2 + 3), rtol=1e-14, atol=0)


@pytest.mark.devices
def test_scatter_sums_and_its_backward_gathers() -> None:
    results = run_ranks(3, scatter, X, WEIGHT)
    kept = torch.cat([kept for kept, _ in results])
    torch.testing.assert_close(kept, X * (1 + 2 + 3), rtol=1e-14, atol=0)
    assert all(torch.equal(gradient, WEIGHT) for _, gradient in results)


@pytest.mark.devices
def test_bfloat16_is_summed_in_float32_in_rank_order() -> None:
    # In bfloat16 every 1 is lost beside 256, whose neighbours are 2 apart.
    addends = [torch.full((4, 2), value, dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0, 1.0)]
    results = run_ranks(4, scatter_addends, addends)
    assert all(torch.equal(kept, torch.full((1, 2), 260.0, dtype=torch.bfloat16)) for kept, _ in results)


@pytest.mark.devices
def test_the_sum_runs_in_rank_order_and_keeps_no_receive_buffer() -> None:
    addends = [torch.full((3, 2), value) for value in (1e8, 1.0, -1e8)]
    results = run_ranks(3, scatter_addends, addends)
    # 1e8 + 1 rounds to 1e8 in float32, so only this order gives 0.
    assert all(torch.equal(kept, torch.zeros(1, 2)) for kept, _ in results)
    assert {num_bytes for _, num_bytes in results} == {1 * 2 * 4}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8, 16])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-6)]
)
def test_one_kernel_sums_as_the_ranks_one_after_another(
    num_ranks: int, dtype: torch.dtype, tolerance: float
) -> None:
    addends = torch.rand(num_ranks, 5, 4).to(dtype)
    in_order, at_once = collectives._sum_in_order(addends), collectives._sum_in_one_kernel(addends)
    assert in_order.dtype == at_once.dtype
    torch.testing.assert_close(at_once, in_order, rtol=tolerance, atol=0)
    torch.testing.assert_close(at_once.double(), addends.double().sum(0), rtol=tolerance, atol=0)
    assert at_once.untyped_storage().nbytes() == at_once.nbytes


@pytest.mark.devices
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_the_backends_own_reduce_scatter_equals_the_sum_in_rank_order(
    dtype: torch.dtype, tolerance: float
) -> None:
    addends = [torch.rand(6, 4).to(dtype) for _ in range(3)]
    for (native, num_bytes), (in_order, _) in run_ranks(3, scatter_both_ways, addends):
        assert native.dtype == dtype
        torch.testing.assert_close(native, in_order, rtol=tolerance, atol=0)
        assert num_bytes == native.nbytes


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_the_backend_sums_on_cuda_alone_and_only_if_sums_may_differ(
    monkeypatch: pytest.MonkeyPatch, *, is_deterministic: bool
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: is_deterministic)
    with FakeTensorMode():
        assert collectives._is_native(torch.empty(4, 2, device="cuda")) is not is_deterministic
    assert not collectives._is_native(X)


def test_without_a_group_tensors_stay_unchanged() -> None:
    assert all_gather_tokens(X, None) is X
    assert reduce_scatter_tokens(X, None) is X


def test_tokens_that_do_not_split_are_refused() -> None:
    for message in run_ranks(2, scatter_uneven):
        assert message.startswith("micro_batch_invalid: 5 tokens ")
        assert "2 ranks" in message
