"""The loss and the gradients of any strategy equal one process."""

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import IS_SOAK
from hydraulis import Cluster, Scheme, Strategy
from hydraulis.config.kinds import CheckpointingKind, ContextKind, MemoryRule
from hydraulis.config.model import ModelConfig
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, plain_tokens
from hydraulis.errors import InvalidInputError
from hydraulis.model.attention.cuda_flash import TorchFlash
from hydraulis.model.attention.kernel import AttentionKernel
from hydraulis.model.attention.plain import PlainAttention
from hydraulis.runtime import worker as worker_module
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from ranks import run_ranks
from runtime.one_process import (
    CHECKPOINTED,
    CONTEXT_STRATEGIES,
    OPTIMIZER,
    STRATEGIES,
    assert_equal,
    batches,
    checkpointed,
    model_config,
    one_process,
    relative_error,
)
from runtime.worker_workers import (
    CAPS,
    Batch,
    Step,
    norm_counted_twice,
    refusals,
    sequences_read,
    train,
    train_all,
)
from runtime.zero_1 import assert_sends_bytes_of_zero_1
from small_model import FAMILIES

# Lengths of which pipelines take the longer ones by the exact rule alone, one at a time.
LONG = (
    ("1x<pp4>+4x<1>", (200, 190, 60, 30, 9)),
    ("1x<tp2,pp2>+2x<tp2>", (180, 170, 90, 20, 3)),
    ("1x<tp2,pp3>+1x<pp2>", (280, 250, 120, 2, 1)),
    ("1x<tp2,cp2,pp2>", (300, 250)),
)
KINDS: tuple[ContextKind, ...] = ("ulysses", "ring")
# Lengths of a batch and how many of its sequences have targets, under strategies at the edge of what runs.
EDGES = (
    # One head on each rank, and one key/value head for all of them.
    ("1x<tp6>+2x<1>", (30, 9, 4, 2), 4),
    ("2x<tp3>", (30, 9, 4, 2), 4),
    ("1x<tp3,cp2>+1x<tp2>", (30, 9, 4, 2), 4),
    # More context ranks than heads.
    ("1x<cp8>", (41, 7, 1), 3),
    # A replica whose tokens have no target; one without any.
    ("8x<1>", (9,) * 7, 1),
    ("1x<tp6>+2x<1>", (3, 1), 2),
    # Fewer tokens than ranks, and one micro-batch for all stages. (With 2 tokens queries have no gradient.)
    ("1x<tp2,cp2,pp2>", (3,), 1),
    ("1x<pp4>+4x<1>", (3, 1, 1), 1),
)
CHECKPOINTED_MODEL = model_config(tie_word_embeddings=True, qk_norm=True)
FAMILY_STRATEGIES = ("1x<tp4>+1x<tp2>+2x<1>", "1x<tp4,cp2>", "1x<tp2,cp2,pp2>")


def context_steps(vocab_size: int) -> list[tuple[str, Batch]]:
    rng = np.random.default_rng(6)
    few = [[rng.integers(vocab_size, size=n).astype(np.uint8) for n in batch] for batch in ([3, 1], [3])]
    return list(zip(CONTEXT_STRATEGIES, [*batches(8, vocab_size), *few], strict=True))


def long_steps(vocab_size: int) -> list[tuple[str, Batch]]:
    rng = np.random.default_rng(9)
    return [(strategy, [rng.integers(vocab_size, size=n) for n in lengths]) for strategy, lengths in LONG]


def masked(batch: Batch, seed: int) -> Batch:
    """Let every second sequence count in some places only, and one of them nowhere."""
    rng = np.random.default_rng(seed)
    mixed: list[SequenceTokens] = list(batch)
    for number, tokens in enumerate(batch):
        if number % 2:
            counts = rng.random(len(tokens)) < (0.0 if number == 3 else 0.4)
            mixed[number] = MaskedTokens(plain_tokens(tokens), counts)
    return mixed


def random_strategies(count: int, seed: int) -> list[str]:
    """Draw replicas of any scheme until the next finds no place on eight ranks."""
    rng = np.random.default_rng(seed)
    cluster = Cluster(gpus=8, gpus_per_node=8)
    drawn = []
    for _ in range(count):
        strategy = f"1x{rng.choice(list(CAPS))}"
        with contextlib.suppress(InvalidInputError):
            while True:
                wider = f"{strategy}+1x{rng.choice(list(CAPS))}"
                Strategy(wider).place(cluster)
                strategy = wider
        drawn.append(strategy)
    return drawn


def random_profiles(count: int, seed: int, context: ContextKind) -> dict[str, str]:
    """Draw profiles of some of the schemes whose times and memory are anything; one scheme admits all."""
    rng = np.random.default_rng(seed)
    profiles = {}
    for number in range(count):
        schemes = {str(one) for one in rng.choice(list(CAPS), size=9, replace=False)} | {"<1>", "<tp2>"}
        caps = {text: int(rng.integers(2, 17)) * 8 for text in sorted(schemes)}
        document = json.loads(made_up_profile(caps | {"<tp4>": 96}, context).to_json())
        document["name"] = f"drawn {number}"
        for entry in document["schemes"]:
            for field in ("quadratic_ms_per_token2", "linear_ms_per_token", "fixed_ms"):
                entry[field] *= float(rng.lognormal(0.0, 1.0))
            entry["forward_share"] = rng.uniform(0.2, 0.6)
            multipliers = rng.uniform(0.7, 1.3, Scheme(entry["scheme"]).pp)
            entry["stage_multipliers"] = multipliers.tolist()
        profiles[document["name"]] = json.dumps(document)
    return profiles


# Whether embeddings are tied, the ranks of a node (between nodes gradients and parameters are relayed),
# layers of stages where they are not shared out by cost (two and two; one, one and two), the rule of memory.
@pytest.mark.parametrize(
    ("tied", "node", "stage_layers", "memory"),
    [
        (False, 8, (), "per_micro_batch"),
        (True, 4, ((1, 3), (2, 1, 1)), "per_micro_batch"),
        (False, 2, (), "in_flight"),
    ],
)
@pytest.mark.devices
def test_every_strategy_equals_one_process_in_float64(
    *, tied: bool, node: int, stage_layers: tuple[tuple[int, ...], ...], memory: MemoryRule
) -> None:
    config = model_config(tie_word_embeddings=tied)
    steps = list(zip(STRATEGIES, batches(len(STRATEGIES), config.vocab_size), strict=True))
    long = long_steps(config.vocab_size) if memory == "in_flight" else []
    settings = (config, OPTIMIZER, torch.float64, [*steps, *long], "ulysses", stage_layers, None, memory)
    result = run_ranks(8, train, *settings, ranks_per_node=node)[0]
    assert_equal(result, one_process(config, torch.float64, [*steps, *long]), 1e-10, 1e-10)
    # Nodes that are pretended are taken for nodes.
    assert (result[0].sent_bytes[1] > 0) == (node < 8)
    for step in result[len(steps) :]:
        assert step.most_tokens > 1.7, step.strategy
        assert step.num_empty > 0, step.strategy
    # Ranks that no replica uses, and ranks of replicas that got no sequence.
    assert result[0].idle_ranks >= 5
    assert result[7].idle_ranks == 1
    if node == 8:
        homogeneous = [step for step in result if "+" not in step.strategy and step.idle_ranks == 0]
        assert {step.strategy for step in homogeneous} >= {"8x<1>", "4x<tp2>", "2x<tp4>", "1x<tp2,pp4>"}
        for step in homogeneous:
            assert_sends_bytes_of_zero_1(step)


def test_a_norm_counted_twice_is_found() -> None:
    config = model_config()
    steps = [("1x<tp2>", batches(2, config.vocab_size)[1])]
    (step,) = run_ranks(2, norm_counted_twice, config, OPTIMIZER, steps)[0]
    (expected,) = one_process(config, torch.float64, steps)
    errors = {name: relative_error(step.gradients[name], value) for name, value in expected.gradients.items()}
    norms = {name for name in errors if name.endswith("layernorm.weight")}
    assert len(norms) == 2 * config.num_hidden_layers
    assert min(errors[name] for name in norms) > 1e-2
    assert max(errors[name] for name in errors.keys() - norms) < 1e-10


def test_a_rank_reads_the_sequences_of_its_replica_alone() -> None:
    config = model_config()
    (first, own), (second, other) = run_ranks(2, sequences_read, config, batches(2, config.vocab_size)[1])
    assert (first, second) == (own, other)
    assert first
    assert second
    assert not first & second


def family_run(family: str) -> tuple[ModelConfig, list[tuple[str, Batch]]]:
    # On <tp4> two ranks hold each key/value head.
    config = model_config(num_key_value_heads=2, **FAMILIES[family])
    drawn = batches(len(FAMILY_STRATEGIES), config.vocab_size)
    return config, list(zip(FAMILY_STRATEGIES, drawn, strict=True))


@pytest.fixture(scope="module")
def families() -> dict[str, list[Step]]:
    """Train every family, in one process group."""
    runs = [(config, OPTIMIZER, torch.float64, steps) for config, steps in map(family_run, FAMILIES)]
    return dict(zip(FAMILIES, run_ranks(8, train_all, runs)[0], strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_one_process_in_float64(families: dict[str, list[Step]], family: str) -> None:
    config, steps = family_run(family)
    assert_equal(families[family], one_process(config, torch.float64, steps), 1e-10, 1e-10)


def test_extreme_strategies_equal_one_process_in_float64() -> None:
    config = model_config(num_attention_heads=6, num_key_value_heads=1)
    rng = np.random.default_rng(8)
    steps: list[tuple[str, Batch]] = []
    for strategy, lengths, num_counting in EDGES:
        drawn = [rng.integers(config.vocab_size, size=length) for length in lengths]
        batch = [
            MaskedTokens(tokens, np.full(len(tokens), number < num_counting))
            for number, tokens in enumerate(drawn)
        ]
        steps.append((strategy, batch))
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, "ring")[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)


# Ulysses without tied embeddings is among the random strategies below, and a ring with them among the
# checkpointed ones.
@pytest.mark.parametrize(("kind", "tied"), [("ulysses", True), ("ring", False)])
@pytest.mark.devices
def test_context_parallel_strategies_equal_one_process_in_float64(kind: ContextKind, *, tied: bool) -> None:
    config = model_config(tie_word_embeddings=tied, qk_norm=True)
    steps = context_steps(config.vocab_size)
    # Where embeddings are tied, the ends of a pipeline share their gradient: here across uneven stages.
    stage_layers = ((3, 1), (1, 2, 1)) if tied else ()
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, kind, stage_layers)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)


@pytest.mark.parametrize(("kind", "seed"), [("ulysses", 1), ("ring", 2)])
@pytest.mark.devices
def test_random_and_searched_strategies_equal_one_process_in_float64_with_loss_masks(
    kind: ContextKind, seed: int
) -> None:
    config = model_config(attention_bias=True)
    count = 12 if IS_SOAK else 6
    strategies, profiles = random_strategies(count, seed), random_profiles(count * 2 // 3, seed, kind)
    assert sum("cp" in strategy for strategy in strategies) >= count // 2
    texts = [*strategies, *profiles]
    drawn = batches(len(texts), config.vocab_size)
    steps = list(zip(texts, [masked(batch, n) for n, batch in enumerate(drawn)], strict=True))
    stage_layers = ((1, 3), (2, 1, 1))
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, kind, stage_layers, profiles)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)
    found = [step.strategy for step in result[len(strategies) :]]
    assert len(set(found)) > len(profiles) // 2


def checkpointed_run(kinds: tuple[CheckpointingKind, ...], kind: ContextKind) -> list[tuple[str, Batch]]:
    # Each list of kinds has its share of the strategies: test_worker_precision.py runs every list under the
    # same ones.
    layouts = (*STRATEGIES[1:7], *CONTEXT_STRATEGIES[:8])
    first = CHECKPOINTED.index((kinds, kind))
    strategies = [checkpointed(strategy, kinds) for strategy in layouts[first :: len(CHECKPOINTED)]]
    return list(zip(strategies, batches(len(strategies), CHECKPOINTED_MODEL.vocab_size), strict=True))


@pytest.fixture(scope="module")
def checkpointed_steps() -> list[list[Step]]:
    """Train under every list of kinds, in one process group."""
    runs = [
        (CHECKPOINTED_MODEL, OPTIMIZER, torch.float64, checkpointed_run(kinds, kind), kind)
        for kinds, kind in CHECKPOINTED
    ]
    found: list[list[Step]] = run_ranks(8, train_all, runs)[0]
    return found


@pytest.mark.parametrize(("kinds", "kind"), CHECKPOINTED)
@pytest.mark.devices
def test_checkpointed_strategies_equal_one_process_in_float64(
    checkpointed_steps: list[list[Step]], kinds: tuple[CheckpointingKind, ...], kind: ContextKind
) -> None:
    result = checkpointed_steps[CHECKPOINTED.index((kinds, kind))]
    expected = one_process(CHECKPOINTED_MODEL, torch.float64, checkpointed_run(kinds, kind))
    assert_equal(result, expected, 1e-10, 1e-10)


def test_wide_context_groups_with_single_ranks_equal_one_process() -> None:
    config = model_config(num_hidden_layers=1)
    many = [tokens for batch in batches(9, config.vocab_size)[1:] for tokens in batch]
    steps: list[tuple[str, Batch]] = [("1x<cp8>+8x<1>", many), ("16x<1>", many)]
    runs = [(config, OPTIMIZER, torch.float64, steps, kind) for kind in KINDS]
    expected = one_process(config, torch.float64, steps)
    for result in run_ranks(16, train_all, runs)[0]:
        assert_equal(result, expected, 1e-10, 1e-10)
        assert result[0].idle_ranks == 0


def test_a_plan_for_other_ranks_model_or_sequences_is_refused_on_every_rank() -> None:
    codes = ["plan_mismatch", "scheme_model_mismatch", "plan_mismatch", "batch_empty"]
    # What one rank alone finds out when it reads.
    codes += [
        "plan_mismatch",
        "micro_batch_invalid",
        "plan_mismatch",
        "token_out_of_range",
        "token_out_of_range",
        "sequence_unreadable",
    ]
    assert run_ranks(2, refusals) == [codes] * 2


@pytest.mark.parametrize(
    ("kernel", "device", "schemes", "checked"),
    [
        (TorchFlash(), "cuda", ["<1>", "<tp2,pp2>"], [(6, 2, 64, False)]),
        (TorchFlash(), "cuda", ["<1>", "<cp2>"], [(6, 2, 64, True)]),
        (PlainAttention(), "cuda", ["<cp2>"], []),
        (TorchFlash(), "cpu", ["<1>"], []),
    ],
)
def test_the_kernel_of_a_cuda_rank_is_compared_with_plain_attention(
    kernel: AttentionKernel,
    device: str,
    schemes: list[str],
    checked: list[tuple[int, int, int, bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[int, int, int, bool]] = []

    def check(_: AttentionKernel, heads: int, groups: int, like_TND: Any, *, between_segments: bool) -> None:
        found.append((heads, groups, like_TND.shape[-1], between_segments))

    monkeypatch.setattr(worker_module, "choose_kernel", lambda *_: kernel)
    monkeypatch.setattr(worker_module, "check_kernel", check)
    train = SimpleNamespace(attention="auto")
    rank: Any = SimpleNamespace(device=torch.device(device), schemes=list(map(Scheme, schemes)), train=train)
    model: Any = SimpleNamespace(head_dim=64, num_attention_heads=6, num_key_value_heads=2)
    with FakeTensorMode():
        assert Worker._choose_kernel(rank, model, torch.bfloat16) is kernel
    assert found == checked
