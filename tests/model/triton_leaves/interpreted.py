"""Runs the leaves' kernels by Triton's interpreter, on the CPU, and prints how far they are from torch's.

    TRITON_INTERPRET=1 python -m model.triton_leaves.interpreted FOLDER

Triton reads the variable when it is imported, so this is a process of its own. It prints one JSON object: of
each leaf the dtype and the relative distance of each result.
"""

import contextlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.triton_leaves.hopper import hopper_code
from model.triton_leaves.kernels import SHAPES, leaf_kernels, load_kernel

_BLOCKS = {"XBLOCK": 16, "R0_BLOCK": 16}
# Lines that need CUDA; `interpreted` gives the names that they define.
_OF_CUDA = re.compile(
    r"^(from torch\._C import .* as get_raw_stream|async_compile = .*|async_compile\.wait.*"
    r"|del async_compile|empty_strided_\w+ = .*)$",
    re.MULTILINE,
)
# The interpreter has no libdevice, whose functions are machine code.
_LIBDEVICE = "from model.triton_leaves.interpreted import Libdevice as libdevice"


class Libdevice:
    """Functions of CUDA's libdevice by Triton's own, which the interpreter replaces while a kernel runs."""

    @staticmethod
    def exp(x: Any) -> Any:
        """Return e to the power of x."""
        return tl.exp(x)

    @staticmethod
    def rsqrt(x: Any) -> Any:
        """Return one over the square root of x."""
        return tl.rsqrt(x)


class _Launcher:
    """Takes the place of a kernel that torch has compiled."""

    def __init__(self, name: str, source: str, folder: Path) -> None:
        self._kernel = load_kernel(name, source, folder, _LIBDEVICE)

    def run(self, *arguments: Any, stream: int) -> None:
        assert stream == 0
        signature = self._kernel.signature
        names = [name for name, kind in signature.items() if kind != "constexpr"]
        given = dict(zip(names, arguments, strict=True))
        blocks = {name: _BLOCKS[name] for name, kind in signature.items() if kind == "constexpr"}
        grid = (triton.cdiv(given["xnumel"], blocks["XBLOCK"]),)
        self._kernel.function[grid](**given, **blocks)


class _Launchers:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def triton(self, name: str, source: str, *, device_str: str) -> _Launcher:
        assert device_str == "cuda"
        return _Launcher(name, source, self._folder)


def interpreted(code: str, folder: Path) -> Callable[[list[Tensor]], tuple[Tensor, ...]]:
    """Return the function `call` of the compiler's code, on tensors of the CPU."""
    own = {
        "async_compile": _Launchers(folder),
        "contextlib": contextlib,
        "empty_strided_cuda": lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype),
        "get_raw_stream": lambda _device: 0,
        "__name__": "interpreted_leaf",
    }
    lines = _OF_CUDA.sub("", code).replace("torch.cuda._DeviceGuard(0)", "contextlib.nullcontext()")
    exec(lines.replace("torch.cuda.set_device(0)", "pass"), own)
    call: Callable[[list[Tensor]], tuple[Tensor, ...]] = own["call"]  # type: ignore[assignment]
    return call


def _distance(found: Tensor, expected: Tensor) -> tuple[str, float]:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    wide = expected.double()
    return str(expected.dtype), float((found.double() - wide).norm() / wide.norm())


def main(folder: Path) -> None:
    """Run every leaf on drawn inputs."""
    distances = {}
    for name, kernel in leaf_kernels().items():
        inputs = [torch.randn(shape) for shape in SHAPES[name]]
        call = interpreted(hopper_code(kernel, SHAPES[name], torch.float32), folder / name)
        expected = kernel(*inputs)
        distances[name] = list(map(_distance, call(list(inputs)), expected))
    sys.stdout.write(json.dumps(distances))


if __name__ == "__main__":
    torch.manual_seed(0)
    main(Path(sys.argv[1]))
