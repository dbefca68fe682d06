"""Stages on CUDA without a device: torch's shape functions compute, and refuse what lies on two devices.

What has the host wait is seen too: a copy between host and device that is not asked for beside computation.
Autograd needs a device to run on, so the backward of each function of our own follows its forward here.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from hydraulis import Scheme
from hydraulis._core import Position
from hydraulis.config.kinds import ContextKind
from hydraulis.model import linear, rope, swiglu
from hydraulis.model.attention import varlen
from hydraulis.model.rope import rotary_frequencies
from hydraulis.parallel import collectives, vocabulary
from hydraulis.parallel.context import ring, ulysses
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.runtime.pipeline.stage import Stage, StageKinds
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.parameters import ModelParameters
from small_model import small_config

CUDA = torch.device("cuda", 0)
# Heads that FlashAttention takes.
PARAMETERS = ModelParameters.from_config(small_config(head_dim=8, qk_norm=True, attention_bias=True))
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
FUNCTIONS = (
    (varlen, "_attend", varlen._VarlenAttention),
    (collectives, "_gather", collectives._AllGatherTokens),
    (collectives, "_scatter", collectives._ReduceScatterTokens),
    (vocabulary, "_head_loss", vocabulary._HeadLoss),
    (swiglu, "_product", swiglu._GatedProduct),
    (linear, "_linear_maps", linear._LinearMaps),
    (rope, "_rotation", rope._Rotation),
    (ring, "_attend", ring._RingAttention),
    (ulysses, "_to_heads", ulysses._TokensToHeads),
    (ulysses, "_to_tokens", ulysses._HeadsToTokens),
)


class HostWaits(TorchDispatchMode):
    """Remembers the operations that bring something to the device, or from it, while the host stands by."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []
        # Allocations of pinned memory, which can make the host wait too.
        self.num_pinned = 0
        self.num_seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.num_seen += 1
        self.num_pinned += bool(kwargs.get("pin_memory", False))
        given, _ = tree_flatten((args, result))
        # A single number of the host's goes along with the kernel, but for one that is copied.
        tensors = [x for x in given if isinstance(x, Tensor) and (x.dim() > 0 or func in COPIES)]
        devices = {tensor.device.type for tensor in tensors}
        if len(devices) > 1 and not kwargs.get("non_blocking", False):
            self.operations.append(str(func))
        return result


class Context:
    """What a function's forward leaves for its backward, all that it is given being trained."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(x, Tensor) and x.is_floating_point() for x in inputs)

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


def both_ways(function: Any, ran: set[str]) -> Callable[..., Any]:
    """Give the forward, which has the backward run too and looks at its gradients."""

    @torch.no_grad()
    def forward(*inputs: Any) -> Any:
        context = Context(inputs)
        outputs = function.forward(context, *inputs)
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        gradients = function.backward(context, *map(torch.ones_like, given))
        for value, gradient in zip(inputs, gradients, strict=True):
            if isinstance(value, Tensor) and gradient is not None:
                assert (gradient.shape, gradient.device) == (value.shape, CUDA)
        ran.add(function.__name__)
        return outputs

    return forward


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Be rank 0 of four on devices of the newest kind; give the functions that have run both ways."""
    names: set[str] = set()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for module, name, function in FUNCTIONS:
        monkeypatch.setattr(module, name, both_ways(function, names))
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    # The saved tensors of one graph belong to that graph alone.
    rotary_frequencies.cache_clear()
    yield names
    rotary_frequencies.cache_clear()
    dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("scheme", "context", "expected"),
    [
        ("<1>", None, {"_VarlenAttention", "_HeadLoss", "_GatedProduct", "_Rotation"}),
        ("<pp2,selective>", None, {"_VarlenAttention", "_HeadLoss"}),
        ("<tp2,full>", None, {"_AllGatherTokens", "_ReduceScatterTokens"}),
        ("<cp2>", "ring", {"_RingAttention"}),
        ("<cp2>", "ulysses", {"_TokensToHeads", "_HeadsToTokens"}),
        ("<tp2,cp2>", "ring", {"_RingAttention", "_AllGatherTokens"}),
    ],
)
@pytest.mark.usefixtures("shapes_of_products")
def test_a_stage_computes_on_its_device_alone_and_the_host_waits_for_nothing(
    scheme: str, context: ContextKind | None, expected: set[str], dtype: torch.dtype, ran: set[str]
) -> None:
    positions = Position.all(Scheme(scheme))
    groups = ProcessGroups(timedelta(seconds=9), "fake")
    groups.ensure(
        ranks
        for rank, place in enumerate(positions)
        for ranks in (place.tensor_group(rank), place.context_group(rank))
    )
    fake = FakeTensorMode()
    # The first rank of each stage; rank 0 stands in for it.
    for position in (place for place in positions if (place.tensor_rank, place.context_rank) == (0, 0)):
        waits = HostWaits()
        with fake:
            buffers = LocalShard(PARAMETERS, [Scheme(scheme)], dtype, CUDA)
            stage = Stage(position, StageKinds(context=context), 0, groups, buffers)
            with waits:
                batch = stage.collate([np.arange(length) for length in (30, 11, 5)])
                came_tH = torch.empty(stage.hidden_shape(batch), dtype=dtype, device=CUDA, requires_grad=True)
                output = stage.forward(None if stage.is_first else came_tH, batch, 10)
                # Of the first micro-batch alone, whose angles' frequencies are kept.
                num_pinned = waits.num_pinned
                stage.forward(None if stage.is_first else came_tH, batch, 10)
        assert waits.num_seen > 20
        assert waits.operations == []
        assert waits.num_pinned == num_pinned > 0
        assert output.device == CUDA
        assert output.shape == (() if stage.is_last else came_tH.shape)
    assert expected <= ran
