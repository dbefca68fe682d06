"""The Triton code that torch's compiler writes for an H100, on a machine without a device.

The compiler asks a device for its properties, which are stated here. The result is the text of a Python
module: kernels as strings, and a function `call` that launches them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

_CUDA = "cuda:0"
# An H100's; a version of torch takes those that it knows.
_PROPERTIES: dict[str, Any] = {
    "type": "cuda",
    "index": 0,
    "multi_processor_count": 132,
    "cc": 90,
    "major": 9,
    "minor": 0,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}


def hopper_code(kernel: Callable[..., Any], shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> str:
    """Return the module that computes a function of tensors.

    Args:
        kernel: The function.
        shapes: Shape of each tensor.
        dtype: Dtype of the tensors.
    """
    # Parts of torch without a stability promise.
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode() as fakes:
        inputs = [torch.empty(shape, dtype=dtype, device=_CUDA) for shape in shapes]
        traced = make_fx(kernel, decomposition_table=select_decomp_table())(*inputs)
    with _described_device(), V.set_fake_mode(fakes):
        graph = GraphLowering(traced, example_inputs=inputs, shape_env=fakes.shape_env)
        with V.set_graph_handler(graph), V.set_debug_handler(DebugContext()):
            graph.run(*inputs)
            written: Any = graph.codegen()[0]
    return str(written.value)


@contextmanager
def _described_device() -> Iterator[None]:
    from torch._inductor.runtime.hints import DeviceProperties

    whole = SimpleNamespace(**_PROPERTIES)
    stated = {name: value for name, value in _PROPERTIES.items() if name in DeviceProperties._fields}
    with (
        patch.object(DeviceProperties, "create", lambda _device: DeviceProperties(**stated)),
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.device_count", lambda: 1),
        patch("torch.cuda.current_device", lambda: 0),
        patch("torch.cuda.get_device_capability", lambda _device=None: (9, 0)),
        patch("torch.cuda.get_device_properties", lambda _device=None: whole),
        patch("torch._inductor.scheduler.has_triton", lambda: True),
        # It asks Triton's driver, which needs a device.
        patch("torch.utils._triton.triton_hash_with_backend", lambda: "hopper"),
    ):
        yield
