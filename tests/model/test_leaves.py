"""The compiled leaves need CUDA devices, Triton and a C compiler."""

import pytest
import torch

from helpers import refused
from hydraulis.model import float8
from hydraulis.model.leaves import compiled_leaves, require_triton


def test_a_missing_device_library_or_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("device_missing", "train.compile = true", "the CPU", "train.compile = false"):
        require_triton(torch.device("cpu"))
    device = torch.device("cuda", 0)
    monkeypatch.setattr("hydraulis.model.leaves.find_spec", lambda _: object())
    monkeypatch.setenv("CC", "cc")
    require_triton(device)
    monkeypatch.delenv("CC")
    monkeypatch.setattr("shutil.which", lambda _: None)
    with refused("extra_missing", "train.compile = true", "C compiler", "CC"):
        require_triton(device)
    monkeypatch.setattr("hydraulis.model.leaves.find_spec", lambda _: None)
    with refused("extra_missing", "train.compile = true", "pip install triton"):
        require_triton(device)


def test_a_device_without_float8_rounds_by_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = pytest.importorskip("hydraulis.model.triton_kernels")
    for index, (capability, expected) in enumerate(
        (((8, 0), float8.quantize), ((8, 9), kernels.quantize), ((9, 0), kernels.quantize))
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, one=capability: one)
        assert compiled_leaves(torch.device("cuda", index)).quantize is expected
    compiled_leaves.cache_clear()
