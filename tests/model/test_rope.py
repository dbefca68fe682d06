import pytest
import torch

from hydraulis.model.rope import rotary_frequencies, rotary_table
from small_model import small_config

HEAD_DIM = 10
THETA = 500.0
CONFIG = small_config(head_dim=HEAD_DIM, rope_theta=THETA)


def test_rotation_equals_multiplication_by_complex_numbers() -> None:
    x_TND = torch.randn(6, 3, HEAD_DIM, dtype=torch.float64)
    position_T = torch.tensor([0, 1, 2, 0, 1, 70000])
    turned = rotary_table(position_T, CONFIG, torch.float64).rotate(x_TND)

    half = HEAD_DIM // 2
    plane = torch.complex(x_TND[..., :half], x_TND[..., half:])
    for token, position in enumerate(position_T.tolist()):
        for i in range(half):
            angle = torch.tensor(position * THETA ** (-2 * i / HEAD_DIM), dtype=torch.float64)
            expected = plane[token, :, i] * torch.exp(1j * angle)
            torch.testing.assert_close(turned[token, :, i], expected.real, rtol=0, atol=1e-11)
            torch.testing.assert_close(turned[token, :, half + i], expected.imag, rtol=0, atol=1e-11)


def test_the_gradient_is_turned_back_and_no_heads_are_saved() -> None:
    x_TND = torch.randn(4, 3, HEAD_DIM, dtype=torch.float64, requires_grad=True)
    table = rotary_table(torch.tensor([0, 3, 1, 9]), CONFIG, torch.float64)
    saved: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        y_TND = table.rotate(x_TND)
    assert [id(x) for x in saved] == [id(table.cos_TD), id(table.sin_TD)]
    # Lengths are kept, so half of the squared norm has the heads themselves as its gradient.
    (y_TND.square().sum() / 2).backward()
    torch.testing.assert_close(x_TND.grad, x_TND.detach(), rtol=1e-12, atol=1e-12)


def test_scores_depend_on_the_distance_alone() -> None:
    q_1D, k_1D = torch.randn(2, 1, HEAD_DIM, dtype=torch.float64)

    def score(q_position: int, k_position: int) -> float:
        table = rotary_table(torch.tensor([q_position, k_position]), CONFIG, torch.float64)
        q, k = table.rotate(torch.stack((q_1D, k_1D)))
        return float((q * k).sum())

    assert score(9, 4) == pytest.approx(score(1009, 1004), abs=1e-12)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_table_has_the_dtype_of_the_heads_and_exact_angles(dtype: torch.dtype) -> None:
    position_T = torch.tensor([257, 4099])
    table = rotary_table(position_T, CONFIG, dtype)
    exact = rotary_table(position_T, CONFIG, torch.float64)
    assert table.cos_TD.dtype == table.sin_TD.dtype == dtype
    # float32 angles of 4,099 are good to 2.4e-4 rad; bfloat16 cosines to 2**-9.
    torch.testing.assert_close(table.cos_TD.double(), exact.cos_TD, rtol=0, atol=3e-3)
    torch.testing.assert_close(table.sin_TD.double(), exact.sin_TD, rtol=0, atol=3e-3)


def test_frequencies_are_computed_once_for_each_model_dtype_and_device() -> None:
    device = torch.device("cpu")
    first = rotary_frequencies(CONFIG, torch.float32, device)
    assert (
        rotary_frequencies(small_config(head_dim=HEAD_DIM, rope_theta=THETA), torch.float32, device) is first
    )
    others = [
        rotary_frequencies(CONFIG, torch.float64, device),
        rotary_frequencies(small_config(head_dim=HEAD_DIM), torch.float32, device),
    ]
    assert all(other is not first for other in others)
