"""The leaves' Triton kernels, without a device: by Triton's interpreter, and compiled for an H100."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from devices import on_cuda
from small_model import small_config

pytestmark = [
    # Only torch's builds for CUDA come with Triton.
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a build of torch for CUDA"),
    # The compiler's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
# A last rounding to 8 bits remains in bfloat16, 0.17 % in the root mean square.
LEAST = {"torch.float64": 1e-14, "torch.float32": 3e-7, "torch.bfloat16": 3e-3}
BF16, F32, FP8 = "*bf16", "*fp32", "*fp8e4nv"
HEADS = {"HEADS": 32, "PAIRS": 64, "HEADS_BLOCK": 32, "PAIRS_BLOCK": 64}
ROWS = {"WIDTH": 5632, "BLOCK": 1024}
LOGITS = {"WIDTH": 32_000, "BLOCK": 1024}
NORM = {"WIDTH": 2048, "EPSILON": 1e-5, "BLOCK": 2048}
FLOAT8 = {"LARGEST": 448.0, "SMALLEST": 1e-12, "EXPONENT": 0x7F800000, "FRACTION": 0x007FFFFF}
# Types of the pointers of each kernel, and its constants, for TinyLlama's shape.
KERNELS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "_rotate": ([BF16] * 4, HEADS | {"DIRECTION": -1}),
    "_multiply": ([BF16] * 3, ROWS),
    "_product_gradients": ([BF16] * 5, ROWS),
    "_add_norm": ([BF16] * 5, NORM | {"ADDS": True}),
    "_norm_gradients": ([*[BF16] * 5, F32, "i32", "i32"], NORM | {"NEEDS_WEIGHT": True}),
    "_exponentials": ([F32] * 3, LOGITS),
    "_loss_gradient": ([*[F32] * 3, "*i64", F32, BF16], LOGITS),
    "_add_rows": ([F32, "*i64", "*i64", BF16, "i32"], {"WIDTH": 2048, "ROWS": 4, "BLOCK": 1024}),
    "_quantize": ([BF16, FP8, F32], {"COLUMNS": 5632, "BLOCK": 4096} | FLOAT8),
}


@pytest.fixture(autouse=True)
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    # Triton 3.9 warns where neither says it.
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("triton")
    major, minor, *_ = metadata.version("triton").split(".")
    if (int(major), int(minor)) < (3, 7):
        pytest.skip("the interpreter before Triton 3.7 converts arrays to numbers as numpy no longer does")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-m", "model.triton_kernels.interpreted"],
        env=environment,
        cwd=tmp_path_factory.mktemp("interpreted"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def assert_near(rows: list[dict[str, Any]], least: dict[str, float]) -> None:
    assert len(rows) == 9 * 3 * 3
    for row in rows:
        for ours, theirs in zip(row["found"], row["plain"], strict=True):
            assert ours <= max(1.1 * theirs, least[row["dtype"]]), row


def assert_rounded(rows: list[dict[str, Any]], most: float) -> None:
    assert len(rows) == 4
    for row in rows:
        assert row["scales"]
        assert row["values"] <= most


def test_each_leaf_is_as_near_to_exact_as_torchs_operations(interpreted: dict[str, Any]) -> None:
    # Instead of rounding, the interpreter cuts off the bits that bfloat16 lacks: at most 2**-7 of a number.
    assert_near(interpreted["of_leaves"], LEAST | {"torch.bfloat16": 2**-7})


def test_rounding_to_float8_gives_the_same_scales(interpreted: dict[str, Any]) -> None:
    # It also drops the bits that float8 lacks: at most 1/8, where 3 bits remain.
    assert_rounded(interpreted["of_rounding"], 1 / 8)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=on_cuda)])
def test_each_leaf_on_a_device_is_as_near_and_rounds_alike(device: str) -> None:
    from model.triton_kernels.interpreted import of_leaves, of_rounding

    with torch.device(device):
        assert_near(of_leaves(), LEAST)
        assert_rounded(of_rounding(), 0.0)


def test_a_decoder_has_the_same_gradients_under_all_checkpointing(interpreted: dict[str, Any]) -> None:
    assert interpreted["of_decoders"].keys() == {"none", "selective", "full"}
    assert 0 < max(interpreted["of_decoders"].values()) < 1e-10


def test_steps_of_two_ranks_equal_one_rank_by_torchs_operations(interpreted: dict[str, Any]) -> None:
    found = interpreted["of_ranks"]
    assert found.keys() == {"schemes", "frozen", "sharded"}
    assert 0 < max(found.values()) < 1e-10


def test_a_loss_of_two_ranks_is_that_of_the_whole_vocabulary(interpreted: dict[str, Any]) -> None:
    *distances, difference = interpreted["of_split_vocabulary"]
    assert len(distances) == 4
    assert max(distances) < 1e-12
    assert difference == 0.0


def test_as_many_bytes_are_saved_for_backward(interpreted: dict[str, Any]) -> None:
    plain, compiled = interpreted["of_stages"]
    # On the CPU torch's norm saves the stream over its root mean square too, and the inverse of that.
    config = small_config()
    norms = 2 * config.num_hidden_layers
    assert compiled == plain - norms * 64 * (config.hidden_size + 1) * torch.float64.itemsize


def compiled(name: str, capability: int = 90, narrow: str = BF16, **changes: Any) -> Any:
    """Compile a kernel, with another type of activations and other constants."""
    from triton import compile as compile_kernel
    from triton import language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hydraulis.model import triton_kernels

    kernel = getattr(triton_kernels, name)
    types, constants = KERNELS[name]
    types = [{BF16: narrow, F32: "*fp64" if narrow == "*fp64" else F32}.get(one, one) for one in types]
    wide = tl.float64 if narrow == "*fp64" else tl.float32
    constants = constants | ({"WIDE": wide} if "WIDE" in kernel.arg_names else {}) | changes
    given = [argument for argument in kernel.arg_names if argument not in constants]
    signature = dict(zip(given, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    pointers = [argument for argument in given if signature[argument].startswith("*")]
    index = {argument: place for place, argument in enumerate(kernel.arg_names)}
    return compile_kernel(
        ASTSource(
            fn=kernel,
            signature={argument: signature[argument] for argument in kernel.arg_names},
            constexprs={(index[argument],): value for argument, value in constants.items()},
            attrs={(index[argument],): [["tt.divisibility", 16]] for argument in pointers},
        ),
        target=GPUTarget("cuda", capability, 32),
    )


@pytest.mark.parametrize("name", KERNELS)
def test_triton_compiles_each_kernel_for_an_h100(name: str) -> None:
    built = compiled(name)
    assert built.asm["cubin"].startswith(b"\x7fELF")
    # Activations are read and written 16 bytes at a time; a token's sums are numbers.
    assert re.search(r"ld\.global\S*\.v4\.b32", built.asm["ptx"])
    is_wide = re.search(r"st\.global\S*\.v4\.b32", built.asm["ptx"]) is not None
    assert is_wide is (name != "_exponentials")


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "_quantize"])
def test_triton_compiles_each_kernel_for_an_a100_and_in_float64(name: str) -> None:
    for built in (compiled(name, capability=80), compiled(name, narrow="*fp64")):
        assert built.asm["cubin"].startswith(b"\x7fELF")


@pytest.mark.parametrize(("width", "block"), [(5120, 8192), (16_384, 16_384)])
def test_norms_are_compiled_for_wide_models_and_for_what_they_leave_out(width: int, block: int) -> None:
    for name, left_out in (("_add_norm", "ADDS"), ("_norm_gradients", "NEEDS_WEIGHT")):
        changes: dict[str, Any] = {"WIDTH": width, "BLOCK": block, left_out: False}
        assert compiled(name, **changes).asm["cubin"].startswith(b"\x7fELF")


def test_every_kernel_is_compiled_here() -> None:
    from hydraulis.model import triton_kernels

    kernels = {name for name, one in vars(triton_kernels).items() if hasattr(one, "arg_names")}
    assert kernels == KERNELS.keys()
