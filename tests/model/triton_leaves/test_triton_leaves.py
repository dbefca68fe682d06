"""The leaves that torch compiles for CUDA, without a device: by Triton's interpreter, and to H100 code."""

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

from model.triton_leaves.hopper import hopper_code
from model.triton_leaves.kernels import SHAPES, kernel_sources, leaf_kernels, load_kernel

pytestmark = [
    # Only torch's builds for CUDA come with Triton.
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a build of torch for CUDA"),
    # The compiler's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
BLOCKS = {"XBLOCK": 64, "R0_BLOCK": 64}
# The sum over the tokens, the gradient of the norm's weight, is a second one.
NUM_KERNELS = {name: 2 if name == "_norm_gradients" else 1 for name in SHAPES}
# Of single results. The interpreter drops the bits that float8 lacks: at most 1/8, where 3 bits remain.
TOLERANCES = {"torch.float32": 1e-6, "torch.float8_e4m3fn": 1 / 8}


@pytest.fixture(autouse=True)
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    # As torch's compiler asks for each kernel; Triton 3.9 warns where neither says it.
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def test_every_compiled_leaf_is_tested() -> None:
    assert leaf_kernels().keys() == SHAPES.keys()


@pytest.mark.parametrize("name", SHAPES)
def test_each_leaf_is_one_kernel_that_triton_compiles_for_an_h100(name: str, tmp_path: Path) -> None:
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    code = hopper_code(leaf_kernels()[name], SHAPES[name], torch.bfloat16)
    sources = kernel_sources(code)
    assert len(sources) == NUM_KERNELS[name]
    # No other operation runs beside them.
    assert not re.search(
        r"^ +(extern_kernels|aten|torch\.ops)\.", code.partition("def call")[2], re.MULTILINE
    )
    for kernel, source in sources.items():
        function, signature = load_kernel(kernel, source, tmp_path)
        constants: Any = {
            (index,): BLOCKS[argument]
            for index, (argument, kind) in enumerate(signature.items())
            if kind == "constexpr"
        }
        built = compile_kernel(
            ASTSource(fn=function, signature=dict(signature), constexprs=constants),
            target=GPUTarget("cuda", 90, 32),
        )
        assert ".target sm_90" in built.asm["ptx"]
        assert built.asm["cubin"].startswith(b"\x7fELF")


def test_each_leaf_by_tritons_interpreter_equals_torchs_operations(tmp_path: Path) -> None:
    major, minor, *_ = metadata.version("triton").split(".")
    if (int(major), int(minor)) < (3, 7):
        pytest.skip("the interpreter before Triton 3.7 converts arrays to numbers as numpy no longer does")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-m", "model.triton_leaves.interpreted", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    distances = json.loads(ended.stdout)
    assert distances.keys() == SHAPES.keys()
    for name, results in distances.items():
        assert results, name
        for dtype, distance in results:
            assert distance <= TOLERANCES[dtype], name
