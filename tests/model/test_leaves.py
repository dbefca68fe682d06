"""The compiled leaves need CUDA devices and Triton; all leaves save the same tensors for backward."""

import pytest
import torch

from helpers import refused
from hydraulis.model.leaves import require_triton


def test_a_missing_device_or_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("device_missing", "train.compile = true", "the CPU", "train.compile = false"):
        require_triton(torch.device("cpu"))
    device = torch.device("cuda", 0)
    monkeypatch.setattr("hydraulis.model.leaves.find_spec", lambda _: object())
    require_triton(device)
    monkeypatch.setattr("hydraulis.model.leaves.find_spec", lambda _: None)
    with refused("extra_missing", "train.compile = true", "pip install triton"):
        require_triton(device)
