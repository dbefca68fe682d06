"""The kernels in the code that torch's compiler has written, loaded as functions of Triton."""

import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from hydraulis.model import leaves

TOKENS, HEADS, HEAD_DIM, WIDTH = 70, 3, 8, 48
_HEADS: tuple[int, ...] = (TOKENS, HEADS, HEAD_DIM)
_ROWS: tuple[int, ...] = (TOKENS, WIDTH)
# The inputs of each compiled leaf, by the name of its function. A scalar after them is the norm's epsilon.
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "_multiply": [_ROWS] * 2,
    "_gradients": [_ROWS] * 3,
    "rotate_heads": [_HEADS, *[(TOKENS, HEAD_DIM)] * 2],
    "_turn_back": [_HEADS, *[(TOKENS, HEAD_DIM)] * 2],
    "_add_norm": [_ROWS, _ROWS, (WIDTH,)],
    "_norm_gradients": [_ROWS, _ROWS, _ROWS, (WIDTH,)],
    "quantize": [_ROWS],
}
_EPSILON = 1e-5
_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str='cuda'\)", re.DOTALL)
# Heuristics choose block sizes by measuring on a device.
_HEURISTICS = "import triton_helpers, triton_heuristics"
_STATED = "import triton_helpers\nfrom model.triton_leaves import kernels as triton_heuristics"


class TritonKernel(NamedTuple):
    """A kernel before its block sizes are chosen.

    Attributes:
        function: The function, decorated by `triton.jit`.
        signature: Type of each argument by its name, in order; `constexpr` for a block size.
    """

    function: Any
    signature: Mapping[str, str]


def leaf_kernels() -> dict[str, Callable[..., Any]]:
    """Return every function that `compiled_leaves` compiles, of tensors alone, by its name."""
    found: dict[str, Callable[..., Any]] = {}

    def note(kernel: Callable[..., Any], _dynamic: object) -> Callable[..., Any]:
        found[kernel.__name__] = kernel
        return kernel

    with patch.object(leaves, "_compiled", note):
        leaves.compiled_leaves.__wrapped__()
    return {name: _of_tensors(kernel) for name, kernel in found.items()}


def _of_tensors(kernel: Callable[..., Any]) -> Callable[..., Any]:
    constants = (_EPSILON,) if "norm" in kernel.__name__ else ()

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = kernel(*tensors, *constants)
        return (results,) if isinstance(results, torch.Tensor) else tuple(results)

    return call


def kernel_sources(code: str) -> dict[str, str]:
    """Return the text of each kernel by its name."""
    return dict(_KERNEL.findall(code))


def load_kernel(name: str, source: str, folder: Path, libdevice: str = "") -> TritonKernel:
    """Load a kernel from its text, through a file, since Triton reads the functions' lines.

    Args:
        name: Name of the kernel.
        source: Text of its module.
        folder: Folder for the file.
        libdevice: Statement that defines `libdevice` in place of CUDA's own; '' for that.
    """
    text = source.replace(_HEURISTICS, _STATED).replace("triton_helpers.set_driver_to_gpu()", libdevice)
    assert text.count("triton_heuristics") >= 2
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel: TritonKernel = getattr(module, name)
    return kernel


def _heuristic(*, triton_meta: Mapping[str, Any], **_: object) -> Callable[[Any], TritonKernel]:
    """Stand for a decorator of torch's that chooses block sizes."""
    return lambda function: TritonKernel(function, triton_meta["signature"])


pointwise = reduction = persistent_reduction = _heuristic
