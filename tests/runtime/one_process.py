"""Training in one process without the runtime, and the comparison of ranks with it."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hydraulis import Strategy
from hydraulis.config.kinds import CheckpointingKind, ContextKind
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, count_targets, plain_tokens
from hydraulis.model.decoder import Decoder
from hydraulis.model.sequences import IGNORE_INDEX, PackedSequences
from runtime.worker_workers import SEED, Batch, Step
from small_model import bind_parameters, initial_value, logits_of, token_loss

STRATEGIES = (
    "8x<1>",
    "1x<tp4>+1x<tp2>+2x<1>",
    "1x<tp2,pp2>+2x<tp2>",
    "1x<pp4>+4x<1>",
    "1x<tp4,pp2>",
    "1x<tp2,pp3>+1x<pp2>",
    "2x<tp4>",
    "1x<tp4>+1x<pp3>",
    "4x<tp2>",
    "1x<tp2,pp4>",
    "8x<1>",
)
# More context ranks than key/value heads, as many as query heads, and numbers that divide neither.
CONTEXT_STRATEGIES = (
    "1x<cp8>",
    "1x<cp4>+4x<1>",
    "1x<tp2,cp2>+1x<cp2>+2x<1>",
    "1x<tp2,cp2,pp2>",
    "1x<cp2,pp3>+1x<tp2>",
    "1x<cp3>+1x<cp2,pp2>+1x<1>",
    "1x<tp4,cp2>",
    "4x<cp2>",
    # Fewer tokens than ranks that share them out.
    "1x<cp8>",
    "1x<tp2,cp2,pp2>",
)
# Kinds of checkpointing that the replicas of a strategy have in turn.
CHECKPOINTED: list[tuple[tuple[CheckpointingKind, ...], ContextKind]] = [
    (("selective",), "ulysses"),
    (("selective", "full"), "ring"),
    (("full",), "ulysses"),
    (("full", "selective", "none"), "ring"),
]
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=3, weight_decay=0.1, no_decay=(), clip_norm=0)


def model_config(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 6,
        "initializer_range": 0.2,
    }
    return ModelConfig(**shape | changes)


def batches(count: int, vocab_size: int, size: int = 14) -> list[Batch]:
    """Long-tailed lengths, one-token sequences among them; the first batch leaves replicas without work."""
    rng = np.random.default_rng(5)
    lengths = [np.clip(rng.lognormal(2.2, 1.0, size), 1, 64).astype(int) for _ in range(count)]
    lengths[0] = np.array([40, 3, 1])
    return [[rng.integers(vocab_size, size=n).astype(np.uint8) for n in batch] for batch in lengths]


def checkpointed(strategy: str, kinds: Sequence[str]) -> str:
    """Give the strategy with replicas of these kinds or layer plans, in turn."""
    schemes = zip(Strategy(strategy).schemes, itertools.cycle(kinds), strict=False)
    return "+".join(f"1x{scheme.with_checkpointing(kind)}" for scheme, kind in schemes)


def one_process(
    config: ModelConfig,
    dtype: torch.dtype,
    steps: Sequence[tuple[str, Batch]],
    trained: Sequence[str] | None = None,
) -> list[Step]:
    """Train without the runtime: each sequence alone, gradients from autograd, torch's own AdamW.

    Args:
        config: The model.
        dtype: The model's dtype.
        steps: Strategy and batch of each iteration; the strategy has no effect here.
        trained: Names of the trained parameters; `None` for all.
    """
    with torch.device("meta"):
        model = Decoder(config)
    bind_parameters(model, lambda name: initial_value(name, config, SEED, dtype))
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        parameter.requires_grad_(trained is None or name in trained)
    updated = {name: parameters[name] for name in trained or parameters}
    adamw = torch.optim.AdamW(
        updated.values(), betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=OPTIMIZER.weight_decay
    )
    records = []
    for number, (strategy, batch) in enumerate(steps, start=1):
        adamw.zero_grad()
        denominator = sum(count_targets(sequence) for sequence in batch)
        loss = sum(sequence_loss(model, sequence, denominator) for sequence in batch)
        adamw.param_groups[0]["lr"] = OPTIMIZER.learning_rate * min(1, number / OPTIMIZER.warmup_steps)
        gradients = {name: gradient_of(parameter).clone() for name, parameter in updated.items()}
        adamw.step()
        values = {name: parameter.detach().clone() for name, parameter in updated.items()}
        records.append(Step(strategy, 0, loss, gradients, values))
    return records


def sequence_loss(model: Decoder, sequence: SequenceTokens, denominator: int) -> float:
    if len(sequence) < 2:
        return 0.0
    token_T = torch.from_numpy(plain_tokens(sequence).astype(np.int64))
    target_T = token_T.clone()
    if isinstance(sequence, MaskedTokens):
        target_T[~torch.from_numpy(sequence.loss_mask)] = IGNORE_INDEX
    logits_TV = logits_of(model, token_T, PackedSequences.from_lengths([len(sequence)], "cpu"))
    loss = token_loss(logits_TV[:-1], target_T[1:], denominator)
    loss.backward()
    return loss.item()


def gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    return float((value - expected).norm() / expected.norm())


def assert_equal(
    steps: list[Step], expected: list[Step], tolerance: float, parameter_tolerance: float
) -> None:
    assert len(steps) == len(expected) > 0
    for step, reference in zip(steps, expected, strict=True):
        assert step.loss == pytest.approx(reference.loss, rel=tolerance), step.strategy
        assert step.sent_bytes == step.least_bytes, step.strategy
        assert step.gradients.keys() == reference.gradients.keys()
        for name in reference.gradients:
            error = relative_error(step.gradients[name], reference.gradients[name])
            assert error <= tolerance, (step.strategy, name)
            error = relative_error(step.parameters[name], reference.parameters[name])
            assert error <= parameter_tolerance, (step.strategy, name)
