"""A state with a number that is not finite is not written."""

from pathlib import Path

import pytest
import torch

from hydraulis.errors import HydraulisError
from hydraulis.runtime.checkpoint.sound import check_sound
from ranks import run_ranks
from runtime.checkpoint.sound_workers import save_until_damaged


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_number_is_found_and_named(value: float, dtype: torch.dtype) -> None:
    sound = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    check_sound({"master/a": sound, "master/none": sound[:0]}, 7, 2)
    damaged = sound.clone()
    damaged[500] = value
    with pytest.raises(HydraulisError, match="exp_avg/b has a number that is not finite on rank 2") as caught:
        check_sound({"master/a": sound, "exp_avg/b": damaged}, 7, 2)
    assert caught.value.code == "state_not_finite"


def test_the_last_sound_checkpoint_is_kept(tmp_path: Path) -> None:
    """Only one checkpoint is kept, and the state of one rank is damaged after it."""
    for code, message, steps in run_ranks(2, save_until_damaged, tmp_path):
        assert code == "state_not_finite"
        assert "on rank 1 after step 2" in message
        assert steps == [1]
