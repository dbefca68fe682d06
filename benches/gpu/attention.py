"""Attention kernels on packed micro-batches: forward, and forward with backward."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from benches.gpu.workload import Clock, attention_flops, long_tail

from hydraulis.model.attention.kernel import AttentionMask, Heads, Segments
from hydraulis.model.attention.varlen import KERNELS


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSetting:
    """The heads and the micro-batches.

    Attributes:
        device: Device of the heads.
        dtype: Number type of the heads.
        heads: Number of query heads.
        key_value_heads: Number of key/value heads.
        head_dim: Elements of a head.
        tokens: Tokens of a micro-batch.
    """

    device: torch.device
    dtype: torch.dtype
    heads: int
    key_value_heads: int
    head_dim: int
    tokens: int

    def micro_batches(self) -> Iterator[tuple[str, list[int]]]:
        """Give the lengths of each micro-batch, which all have as many tokens, by what it is."""
        short = max(2, self.tokens // 64)
        yield "equal, short", [short] * (self.tokens // short)
        yield "long tail", long_tail(self.tokens, self.tokens // 2, seed=0)
        yield "one long", [self.tokens]

    def draw(self) -> Heads:
        """Draw the heads of a micro-batch."""

        def one(heads: int) -> torch.Tensor:
            return torch.randn(self.tokens, heads, self.head_dim, dtype=self.dtype, device=self.device)

        return Heads(one(self.heads), one(self.key_value_heads), one(self.key_value_heads))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRow:
    """One kernel on one micro-batch.

    Attributes:
        micro_batch: Name of the micro-batch.
        sequences: Number of its sequences.
        kernel: Name of the kernel.
        refusal: Reason why it was not run; None if it was.
        forward_ms: Median time of a forward pass.
        both_ms: Median time of forward and backward together.
        forward_tflops: Rate of the forward pass, by the pairs of query and key that count.
        both_tflops: Rate of both passes; backward counts two and a half times the forward.
    """

    micro_batch: str
    sequences: int
    kernel: str
    refusal: str | None
    forward_ms: float = 0.0
    both_ms: float = 0.0
    forward_tflops: float = 0.0
    both_tflops: float = 0.0


def measure_attention(setting: AttentionSetting, clock: Clock) -> list[AttentionRow]:
    """Time every kernel that takes the heads, on each micro-batch."""
    heads = setting.draw()
    do_TND = torch.randn_like(heads.q_TND)
    rows = []
    for name, lengths in setting.micro_batches():
        segments = Segments.from_lengths(lengths, setting.device)
        mask = AttentionMask(segments, segments, causal=True)
        flops = attention_flops(lengths, setting.heads, setting.head_dim)
        for kernel in KERNELS:
            refusal = kernel.refusal(heads.q_TND)
            if refusal is not None:
                rows.append(
                    AttentionRow(
                        micro_batch=name, sequences=len(lengths), kernel=kernel.name, refusal=refusal
                    )
                )
                continue

            def forward(kernel=kernel, mask=mask):  # type: ignore[no-untyped-def]
                return kernel.forward(heads, mask)

            def both(kernel=kernel, mask=mask):  # type: ignore[no-untyped-def]
                return kernel.backward(do_TND, heads, kernel.forward(heads, mask), mask)

            forward_ms, both_ms = clock.median_ms(forward), clock.median_ms(both)
            rows.append(
                AttentionRow(
                    micro_batch=name,
                    sequences=len(lengths),
                    kernel=kernel.name,
                    refusal=None,
                    forward_ms=forward_ms,
                    both_ms=both_ms,
                    forward_tflops=flops / forward_ms / 1e9,
                    both_tflops=3.5 * flops / both_ms / 1e9,
                )
            )
    return rows
