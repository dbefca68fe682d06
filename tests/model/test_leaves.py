"""The compiled leaves need CUDA devices, Triton and a C compiler."""

import pytest
import torch
from torch import Tensor

from helpers import refused
from hydraulis.model import float8
from hydraulis.model.leaves import PLAIN, compiled_leaves, require_triton
from small_model import build_decoder, small_config


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


def test_the_embedding_of_a_decoder_takes_the_kernel_of_its_leaves() -> None:
    decoder = build_decoder(small_config())
    assert decoder.embed_tokens is not None
    added: list[Tensor] = []
    decoder.use_leaves(PLAIN._replace(add_rows=lambda _, token_T, __: added.append(token_T)))
    weight = decoder.embed_tokens.weight
    weight.grad = torch.zeros_like(weight)
    token_T = torch.tensor([3, 1, 3])
    decoder.embed_tokens(token_T).sum().backward()
    assert [one.tolist() for one in added] == [[3, 1, 3]]
    assert not weight.grad.any()


def test_a_device_without_float8_rounds_by_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = pytest.importorskip("hydraulis.model.triton_kernels")
    for index, (capability, expected) in enumerate(
        (((8, 0), float8.quantize), ((8, 9), kernels.quantize), ((9, 0), kernels.quantize))
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, one=capability: one)
        assert compiled_leaves(torch.device("cuda", index)).quantize is expected
    compiled_leaves.cache_clear()
