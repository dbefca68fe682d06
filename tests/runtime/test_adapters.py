"""Adapters train under any strategy as PEFT's do on one process, and little else moves."""

from collections.abc import Sequence

import pytest
import torch

from hydraulis.config.kinds import ContextKind
from hydraulis.config.lora import TARGETS, Adapters, AdapterTarget
from hydraulis.config.model import ModelConfig
from hydraulis.model.decoder import Decoder
from hydraulis.runtime.state.parameters import ModelParameters
from model.test_linear import with_peft
from ranks import run_ranks
from runtime.adapters_workers import Values, train_adapters
from runtime.one_process import (
    CONTEXT_STRATEGIES,
    OPTIMIZER,
    STRATEGIES,
    assert_equal,
    batches,
    checkpointed,
    gradient_of,
    model_config,
    sequence_loss,
)
from runtime.worker_workers import Batch, Step
from small_model import FAMILIES, bind_parameters

ADAPTERS = Adapters(rank=3, alpha=5.0, targets=TARGETS)


def by_peft(config: ModelConfig, steps: Sequence[tuple[str, Batch]]) -> list[Step]:
    """Train PEFT's adapters of the same decoder with gradients from autograd and torch's own AdamW."""
    assert config.adapters is not None
    with torch.device("meta"):
        base = Decoder(config.base)
    source = Values(ModelParameters.from_config(config))
    bind_parameters(base, source.whole)
    drawn = {name: source.whole(name) for name in source.parameters.names}
    trained = with_peft(base, config.adapters, drawn)
    adamw = torch.optim.AdamW(
        trained.values(), betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=OPTIMIZER.weight_decay
    )
    records = []
    for number, (strategy, batch) in enumerate(steps, start=1):
        adamw.zero_grad()
        denominator = sum(len(tokens) - 1 for tokens in batch)
        loss = sum(sequence_loss(base, tokens, denominator) for tokens in batch)
        adamw.param_groups[0]["lr"] = OPTIMIZER.learning_rate * min(1, number / OPTIMIZER.warmup_steps)
        gradients = {name: gradient_of(parameter).clone() for name, parameter in trained.items()}
        adamw.step()
        values = {name: parameter.detach().clone() for name, parameter in trained.items()}
        records.append(Step(strategy, 0, loss, gradients, values))
    return records


# Biases, tied embeddings, and two tensor ranks for each key/value head of <tp4>.
_Case = tuple[Sequence[str], str, tuple[AdapterTarget, ...], ContextKind, Sequence[str]]
CASES: list[_Case] = [
    (STRATEGIES, "every bias", TARGETS, "ulysses", ("none",)),
    (CONTEXT_STRATEGIES[:8], "qwen3", TARGETS, "ring", ("selective", "full")),
    (STRATEGIES[1:6], "qwen2", ("k_proj", "o_proj", "down_proj"), "ulysses", ("full", "selective")),
    # The first layer's input has no gradient: nothing before the first adapter is saved.
    (STRATEGIES[1:6], "qwen2", ("o_proj", "down_proj"), "ulysses", ("offload", "full,offload:2/4")),
    (STRATEGIES[1:6], "qwen2", ("o_proj", "down_proj"), "ulysses", ("selective", "selective,full:2/4")),
    (CONTEXT_STRATEGIES[1:5], "qwen3", TARGETS, "ring", ("selective,offload:3/4", "offload:1/4", "offload")),
    (STRATEGIES[1:6], "qwen3", TARGETS, "ulysses", ("full-offload", "full,full-offload:2/4")),
]


@pytest.mark.parametrize(("strategies", "family", "targets", "context", "kinds"), CASES)
def test_every_strategy_equals_peft_on_one_process_in_float64(
    strategies: Sequence[str],
    family: str,
    targets: tuple[AdapterTarget, ...],
    context: ContextKind,
    kinds: Sequence[str],
) -> None:
    adapters = Adapters(rank=3, alpha=5.0, targets=targets)
    config = model_config(num_key_value_heads=2, **FAMILIES[family], adapters=adapters)
    texts = [checkpointed(strategy, kinds) for strategy in strategies]
    steps = list(zip(texts, batches(len(texts), config.vocab_size), strict=True))
    result, _ = run_ranks(8, train_adapters, config, OPTIMIZER, steps, context)[0]
    expected = by_peft(config, steps)
    assert len(expected[0].gradients) == 2 * len(targets) * config.num_hidden_layers
    assert_equal(result, expected, 1e-10, 1e-10)


@pytest.mark.parametrize("node", [4, 2])
def test_only_adapters_move_while_ranks_stay_where_they_are(node: int) -> None:
    config = model_config(adapters=ADAPTERS)
    parameters = ModelParameters.from_config(config)
    trained, frozen = parameters.elements
    texts = ("4x<1>", "4x<1>", "2x<tp2>", "2x<tp2>")
    # The first batch leaves ranks without work.
    steps = list(zip(texts, batches(len(texts) + 1, config.vocab_size)[1:], strict=True))
    given = config, OPTIMIZER, steps, "ulysses"
    result, gradient_elements = run_ranks(4, train_adapters, *given, ranks_per_node=node)[0]
    first, second, moved, last = (sum(step.sent_bytes) // torch.float64.itemsize for step in result)
    # Three replicas each way; at first, and when ranks move, the frozen parameters too.
    assert second == 2 * 3 * trained
    assert first == second + 3 * frozen
    assert last < 2 * 2 * trained < frozen < moved
    # Under <tp2> the matrices whose rank is a dimension of both halves stay whole.
    wide, narrow = gradient_elements[-1], gradient_elements[0]
    assert gradient_elements == [narrow, narrow, wide, wide]
    assert narrow == trained
    assert trained / 2 < wide < trained
    # Between two nodes each adapter element passes once each way.
    crossing = 2 * trained if node == 2 else 0
    assert result[1].sent_bytes[1] == crossing * torch.float64.itemsize
