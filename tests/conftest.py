"""What every test runs under."""

import contextlib
import gc
import inspect
import os
import signal
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import library

# Ranks and the reference compute side by side on few cores: two threads each would wait for one another.
torch.set_num_threads(1)
# Torch reads it at the first matrix product on CUDA, of whichever test, and a later one may be deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# A job that a script starts in the background ignores interrupts, and so would the commands that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The environment of make peers is without hypothesis.
with contextlib.suppress(ImportError):
    from hypothesis import settings

    # No test asserts a time: a busy machine takes longer than the usual 200 ms for an example.
    settings.register_profile("no times", deadline=None)
    settings.load_profile("no times")


def pytest_collection_finish() -> None:
    """Leave all that is imported out of each later garbage collection: it would take a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def shapes_of_products() -> Iterator[None]:
    """Let fake tensors of torch 2.11 add products of another dtype: it takes `out_dtype` for `beta`."""
    from torch._decomp import decomposition_table

    decomposed = inspect.unwrap(decomposition_table[torch.ops.aten.addmm.dtype_out])
    if "out_dtype" in inspect.signature(decomposed).parameters:
        yield
        return
    kernels = library.Library("aten", "IMPL")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        # Torch warns that it has a function of its own for these shapes.
        warnings.simplefilter("ignore")
        patch.delitem(decomposition_table, torch.ops.aten.addmm.dtype_out)
        kernels.impl("addmm.dtype_out", lambda *_, out: out, "Meta", allow_override=True)
        yield
        kernels._destroy()
