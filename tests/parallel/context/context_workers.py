"""Functions that the ranks of the context-parallel tests run."""

import gc
from collections.abc import Sequence
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.config.kinds import ContextKind
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.kernel import Heads
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.context.context_parallel import ContextParallel
from ranks import own_device


def attend(kind: ContextKind, lengths: Sequence[int], heads: Heads, do_TND: Tensor) -> tuple[Tensor, ...]:
    """Attend as one rank; return its token indices, its output and its gradients."""
    assert dist.group.WORLD is not None
    whole = PackedSequences.from_lengths(lengths, own_device())
    index_t, sequences = ContextParallel(kind, dist.group.WORLD).share(whole)
    assert torch.equal(sequences.position_T, whole.position_T[index_t])
    own = Heads(*(x[index_t].requires_grad_() for x in heads))
    o_tND = sequences.attend(*own)
    gradients = torch.autograd.grad(o_tND, own, do_TND[index_t])
    return index_t, o_tND.detach(), *gradients


def refuse(kind: ContextKind, num_tokens: int) -> tuple[str, str]:
    """Split tokens that do not split evenly; return the error's code and message."""
    assert dist.group.WORLD is not None
    try:
        ContextParallel(kind, dist.group.WORLD).share(PackedSequences.from_lengths([num_tokens], "cpu"))
    except InvalidInputError as error:
        return error.code, str(error)
    return "", ""


def ring_buffers(batches: Sequence[Sequence[int]], num_layers: int) -> tuple[int, int, bool, bool]:
    """Attend in rings over several micro-batches, each layer forward and then backward.

    Returns:
        The number of messages sent, the number of storages that they were in, whether every layer gave the
        same as the first, and whether the memory is free in the end.
    """
    assert dist.group.WORLD is not None
    parallel = ContextParallel("ring", dist.group.WORLD)
    wholes = [PackedSequences.from_lengths(lengths, "cpu") for lengths in batches]
    shares = [parallel.share(whole) for whole in wholes]
    storages: list[int] = []
    batch = dist.batch_isend_irecv

    def exchange(operations: list[dist.P2POp]) -> list[dist.Work]:
        storages.extend(one.tensor.untyped_storage().data_ptr() for one in operations)
        works: list[dist.Work] = batch(operations)
        return works

    is_same = True
    with patch.object(dist, "batch_isend_irecv", exchange):
        for index_t, sequences in shares:
            torch.manual_seed(len(index_t))
            own = [torch.randn(len(index_t), 2, 4, requires_grad=True) for _ in range(3)]
            outputs = [sequences.attend(*own) for _ in range(num_layers)]
            # Kept while later layers use the buffers.
            gradients = [torch.autograd.grad(output.sum(), own) for output in reversed(outputs)]
            is_same &= all(map(torch.equal, outputs, outputs[1:]))
            is_same &= all(all(map(torch.equal, one, gradients[0])) for one in gradients)
    del sequences, own, outputs, gradients
    shares.clear()
    gc.collect()
    buffers = parallel._buffers._latest
    return len(storages), len(set(storages)), is_same, buffers is not None and buffers() is None
