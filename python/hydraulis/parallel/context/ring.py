"""Ring attention: each rank attends with its own queries while keys and values go round from rank to rank.

At each step a rank attends to one rank's keys and passes them on; what it got is merged by log-sum-exp. In
backward keys and values go round again, with their gradients behind them: each rank adds its part and
passes them on, and after as many steps as ranks they are home. The gradients of each step need only the
merged output and log-sum-exp, not the other steps (see `model/attention/kernel.py`). Messages travel while a
rank computes (ring attention, arXiv:2310.01889).

Legend: t tokens of this rank, N query heads, K key/value heads, D head dim.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from hydraulis.config.kinds import AttentionKind
from hydraulis.model.attention.kernel import Attended, Heads, check_heads
from hydraulis.model.attention.varlen import choose_kernel
from hydraulis.parallel.context.meetings import Meeting
from hydraulis.parallel.context.merge import merge_, widened


@dataclass(frozen=True, slots=True, eq=False)
class RingSequences:
    """A rank's chunks of a packed micro-batch.

    Attributes:
        position_T: of this rank's tokens, each in its own sequence.
        meetings: what its queries meet at each step, its own keys first.
        group: the context ranks, in the order of their chunks.
        attention: the kernel by which they attend.
    """

    position_T: Tensor
    meetings: tuple[Meeting, ...]
    group: dist.ProcessGroup
    attention: AttentionKind = "auto"

    def attend(self, q_tND: Tensor, k_tKD: Tensor, v_tKD: Tensor) -> Tensor:
        """Attend as `varlen_attention` does over the whole micro-batch; collective over the group."""
        check_heads(Heads(q_tND, k_tKD, v_tKD), self.meetings[0].mask)
        return _attend(q_tND, k_tKD, v_tKD, self)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_tND: Tensor, k_tKD: Tensor, v_tKD: Tensor, ring: RingSequences) -> Tensor:
        kernel = choose_kernel(q_tND, ring.attention)
        total: Attended | None = None
        own = torch.stack((k_tKD, v_tKD))
        for meeting, key_value in zip(ring.meetings, _around(own, ring.group), strict=True):
            if total is None:
                # Its own keys: every query sees one, itself.
                total = widened(kernel.forward(meeting.heads(q_tND, key_value), meeting.mask))
            elif not meeting.is_empty:
                merge_(total, kernel.forward(meeting.heads(q_tND, key_value), meeting.mask), meeting.queries)
        assert total is not None
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
        own = torch.stack((k_tKD, v_tKD))
        dkey_value = torch.zeros_like(own, dtype=wide)
        behind: _Passing | None = None
        for meeting, key_value in zip(ring.meetings, _around(own, ring.group), strict=True):
            gradients = None
            if not meeting.is_empty:
                do_rND = meeting.of_queries(do_tND)
                gradients = kernel.backward(
                    do_rND, meeting.heads(q_tND, key_value), meeting.attended(attended), meeting.mask
                )
            if behind is not None:
                dkey_value = behind.wait()
            if gradients is not None:
                _add_(dq_tND, gradients.q_TND, meeting.queries)
                _add_(dkey_value[0], gradients.k_SKD, meeting.keys)
                _add_(dkey_value[1], gradients.v_SKD, meeting.keys)
            behind = _pass_on(dkey_value, ring.group)
        assert behind is not None
        dk_tKD, dv_tKD = behind.wait().to(k_tKD.dtype)
        return dq_tND.to(q_tND.dtype), dk_tKD, dv_tKD, None


_attend: Callable[[Tensor, Tensor, Tensor, RingSequences], Tensor] = _RingAttention.apply


@dataclass(frozen=True, slots=True, eq=False)
class _Passing:
    """A tensor on its way to the next rank, and one that comes from the previous one."""

    works: list[dist.Work]
    outgoing: Tensor
    incoming: Tensor

    def wait(self) -> Tensor:
        """Return what has come, once both have arrived."""
        for work in self.works:
            work.wait()
        return self.incoming


def _pass_on(outgoing: Tensor, group: dist.ProcessGroup) -> _Passing:
    """Start to send a tensor to the next rank, and to receive one of the same shape from the previous one."""
    rank, size = group.rank(), group.size()
    incoming = torch.empty_like(outgoing)
    operations = [
        dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank + 1) % size),
        dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % size),
    ]
    return _Passing(dist.batch_isend_irecv(operations), outgoing, incoming)


def _around(own: Tensor, group: dist.ProcessGroup) -> Iterator[Tensor]:
    """Give every rank's tensor, this one's own first; while one is used the next is under way."""
    held = own
    for _ in range(group.size() - 1):
        passing = _pass_on(held, group)
        yield held
        held = passing.wait()
    yield held


def _add_(total: Tensor, part: Tensor, rows: Tensor | None) -> None:
    if rows is None:
        total += part
    else:
        # Each row once, so the sum depends on no order.
        total[rows] += part
