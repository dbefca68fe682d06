"""Ring attention: each rank attends with its own queries while keys and values pass from rank to rank.

At each step a rank attends to one rank's keys, sends them on, and merges the result by log-sum-exp. In
backward keys and values pass around again, followed by their gradients: each rank adds its part and sends
them on, and after as many steps as ranks they are back at their owner. The gradients of a step need only the
merged output and log-sum-exp, not the other steps (see `model/attention/kernel.py`). Communication overlaps
with computation (ring attention, arXiv:2310.01889).

Legend: t tokens of this rank, R of them, N query heads, K key/value heads, D head dim.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention.kernel import Attended, Heads, check_heads
from hydraulis.model.attention.varlen import choose_kernel
from hydraulis.parallel.context.ring_buffers import RingBuffers
from hydraulis.parallel.context.ring_steps import RingStep


@dataclass(frozen=True, slots=True, eq=False)
class RingSequences:
    """A rank's chunks of a packed micro-batch.

    Attributes:
        position_T: Position of each of this rank's tokens in its sequence, int64 [t].
        steps: Steps of the ring; the first attends to this rank's own keys.
        group: Context ranks, in context order.
        attention: Kernel that computes the attention.
        buffers: Memory of the keys and values on their way.
    """

    position_T: Tensor
    steps: tuple[RingStep, ...]
    group: dist.ProcessGroup
    attention: AttentionKind = "auto"
    buffers: RingBuffers = field(default_factory=RingBuffers)

    def attend(self, q_tND: Tensor, k_tKD: Tensor, v_tKD: Tensor) -> Tensor:
        """Attend like `varlen_attention` over the whole micro-batch; collective over the group."""
        check_heads(Heads(q_tND, k_tKD, v_tKD), self.steps[0].mask)
        return _attend(q_tND, k_tKD, v_tKD, self)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_tND: Tensor, k_tKD: Tensor, v_tKD: Tensor, ring: RingSequences) -> Tensor:
        kernel = choose_kernel(q_tND, ring.attention)
        total: Attended | None = None
        for step, key_value in zip(ring.steps, _around(k_tKD, v_tKD, ring), strict=True):
            if total is None:
                # The rank's own keys: every query sees at least itself.
                total = widened(kernel.forward(step.heads(q_tND, key_value), step.mask))
            elif not step.is_empty:
                merge_(total, kernel.forward(step.heads(q_tND, key_value), step.mask), step.queries)
        assert total is not None
        if any(ctx.needs_input_grad):
            # So that the memory of the backward counts among the memory of the forward.
            ring.buffers.pair("gradient", k_tKD, total.log_sum_exp_TN.dtype)
        o_tND = total.o_TND.to(q_tND.dtype)
        ctx.save_for_backward(q_tND, k_tKD, v_tKD, o_tND, total.log_sum_exp_TN)
        ctx.ring = ring
        return o_tND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_tND: Tensor) -> tuple[Tensor | None, ...]:
        q_tND, k_tKD, v_tKD, o_tND, log_sum_exp_tN = ctx.saved_tensors
        ring, attended = ctx.ring, Attended(o_tND, log_sum_exp_tN)
        kernel = choose_kernel(q_tND, ring.attention)
        wide = log_sum_exp_tN.dtype
        dq_tND = torch.zeros_like(q_tND, dtype=wide, memory_format=torch.contiguous_format)
        dkey_value, spare = ring.buffers.pair("gradient", k_tKD, wide)
        dkey_value.zero_()
        transfer: _Transfer | None = None
        for step, key_value in zip(ring.steps, _around(k_tKD, v_tKD, ring), strict=True):
            gradients = None
            if not step.is_empty:
                do_RND = step.select_queries(do_tND)
                gradients = kernel.backward(
                    do_RND, step.heads(q_tND, key_value), step.attended(attended), step.mask
                )
            if transfer is not None:
                spare, dkey_value = dkey_value, transfer.wait()
            if gradients is not None:
                _add_(dq_tND, gradients.q_TND, step.queries)
                _add_(dkey_value[0], gradients.k_SKD, step.keys)
                _add_(dkey_value[1], gradients.v_SKD, step.keys)
            transfer = _start_transfer(dkey_value, spare, ring.group)
        assert transfer is not None
        # A copy, because the next layer uses the buffers.
        dk_tKD, dv_tKD = transfer.wait().to(k_tKD.dtype, copy=True)
        return dq_tND.to(q_tND.dtype), dk_tKD, dv_tKD, None


_attend: Callable[[Tensor, Tensor, Tensor, RingSequences], Tensor] = _RingAttention.apply


@dataclass(frozen=True, slots=True, eq=False)
class _Transfer:
    """A pending send to the next rank and receive from the previous rank."""

    works: list[dist.Work]
    outgoing: Tensor
    incoming: Tensor

    def wait(self) -> Tensor:
        """Wait for both, and return the received tensor."""
        for work in self.works:
            work.wait()
        return self.incoming


def _start_transfer(outgoing: Tensor, incoming: Tensor, group: dist.ProcessGroup) -> _Transfer:
    """Start a send to the next rank, and a receive of the same shape from the previous rank."""
    rank, size = group.rank(), group.size()
    operations = [
        dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank + 1) % size),
        dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % size),
    ]
    return _Transfer(dist.batch_isend_irecv(operations), outgoing, incoming)


def _around(k_tKD: Tensor, v_tKD: Tensor, ring: RingSequences) -> Iterator[Tensor]:
    """Yield every rank's keys and values, this rank's first; receive the next ones while these are used."""
    current, spare = ring.buffers.pair("key_value", k_tKD, k_tKD.dtype)
    torch.stack((k_tKD, v_tKD), out=current)
    for _ in range(ring.group.size() - 1):
        transfer = _start_transfer(current, spare, ring.group)
        yield current
        spare, current = current, transfer.wait()
    yield current


def _add_(total: Tensor, part: Tensor, rows: Tensor | None) -> None:
    if rows is None:
        total += part
    else:
        # `rows` has each row once, so the sum does not depend on an order.
        total[rows] += part


def widened(attended: Attended) -> Attended:
    """Return the result with its output in the dtype of the log-sum-exp, at least float32, for `merge_`."""
    return Attended(attended.o_TND.to(attended.log_sum_exp_TN.dtype), attended.log_sum_exp_TN)


def merge_(total: Attended, part: Attended, rows_R: Tensor | None) -> None:
    """Merge attention over further keys into `total`, in place.

    With `m = log(exp(l) + exp(l'))` the softmax over both blocks of keys gives
    `o exp(l - m) + o' exp(l' - m)`, and its log-sum-exp is `m`.

    Args:
        total: Result in the wide dtype. Every query has seen a key, so that no log-sum-exp is minus infinity.
        part: Result of the queries at `rows_R`.
        rows_R: Rows of `total`, int64, each once; None for all rows.
    """
    rows = slice(None) if rows_R is None else rows_R
    o_RND, log_sum_exp_RN = total.o_TND[rows], total.log_sum_exp_TN[rows]
    merged_RN = torch.logaddexp(log_sum_exp_RN, part.log_sum_exp_TN)
    weight_RN1 = (log_sum_exp_RN - merged_RN).exp()[..., None]
    part_weight_RN1 = (part.log_sum_exp_TN - merged_RN).exp()[..., None]
    total.o_TND[rows] = o_RND * weight_RN1 + part.o_TND * part_weight_RN1
    total.log_sum_exp_TN[rows] = merged_RN
