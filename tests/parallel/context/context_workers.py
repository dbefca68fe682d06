"""Functions that the ranks of the context-parallel tests run."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis.config.kinds import ContextKind
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.kernel import Heads
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.context.context_parallel import ContextParallel


def attend(kind: ContextKind, lengths: Sequence[int], heads: Heads, do_TND: Tensor) -> tuple[Tensor, ...]:
    """Attend as one rank; return its token indices, its output and its gradients."""
    assert dist.group.WORLD is not None
    whole = PackedSequences.from_lengths(lengths, "cpu")
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
