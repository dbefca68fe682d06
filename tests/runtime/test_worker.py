"""The loss and the gradients of any strategy equal one process."""

import contextlib
import functools
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from helpers import IS_SOAK
from hydraulis import Cluster, Scheme, Strategy
from hydraulis.config.kinds import CheckpointingKind, ContextKind, MemoryRule
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, count_targets, plain_tokens
from hydraulis.errors import InvalidInputError
from hydraulis.model.decoder import Decoder
from hydraulis.model.init import initial_value
from hydraulis.model.sequences import IGNORE_INDEX, PackedSequences
from profiles import made_up_profile
from ranks import run_ranks
from runtime.worker_workers import (
    CAPS,
    SEED,
    Batch,
    Step,
    norm_counted_twice,
    refusals,
    sequences_read,
    train,
)
from small_model import FAMILIES, bind_parameters, logits_of, token_loss

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
# Lengths of which pipelines take the longer ones by the exact rule alone, one at a time.
LONG = (
    ("1x<pp4>+4x<1>", (200, 190, 60, 30, 9)),
    ("1x<tp2,pp2>+2x<tp2>", (180, 170, 90, 20, 3)),
    ("1x<tp2,pp3>+1x<pp2>", (280, 250, 120, 2, 1)),
    ("1x<tp2,cp2,pp2>", (300, 250)),
)
KINDS: tuple[ContextKind, ...] = ("ulysses", "ring")
# Kinds of checkpointing that the replicas of a strategy have in turn.
CHECKPOINTED: list[tuple[tuple[CheckpointingKind, ...], ContextKind]] = [
    (("selective",), "ulysses"),
    (("selective", "full"), "ring"),
    (("full",), "ulysses"),
    (("full", "selective", "none"), "ring"),
]
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
FAMILY_STRATEGIES = ("1x<tp4>+1x<tp2>+2x<1>", "1x<tp4,cp2>", "1x<tp2,cp2,pp2>")
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


def checkpointed(strategy: str, kinds: Sequence[CheckpointingKind]) -> str:
    """Give the strategy with replicas of these kinds, in turn."""
    schemes = zip(Strategy(strategy).schemes, itertools.cycle(kinds), strict=False)
    return "+".join(f"1x{scheme.under(kind)}" for scheme, kind in schemes)


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


def one_process(config: ModelConfig, dtype: torch.dtype, steps: Sequence[tuple[str, Batch]]) -> list[Step]:
    """Train without the runtime: each sequence by itself, gradients from autograd, torch's own AdamW."""
    with torch.device("meta"):
        model = Decoder(config)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    bind_parameters(model, lambda name: initial_value(name, shapes[name], config, SEED, dtype))
    adamw = torch.optim.AdamW(
        model.parameters(),
        lr=OPTIMIZER.learning_rate,
        betas=OPTIMIZER.betas,
        eps=OPTIMIZER.eps,
        weight_decay=OPTIMIZER.weight_decay,
    )
    records = []
    for number, (strategy, batch) in enumerate(steps, start=1):
        adamw.zero_grad()
        denominator = sum(count_targets(sequence) for sequence in batch)
        loss = sum(sequence_loss(model, sequence, denominator) for sequence in batch)
        adamw.param_groups[0]["lr"] = OPTIMIZER.learning_rate * min(1, number / OPTIMIZER.warmup_steps)
        gradients = {name: gradient_of(parameter).clone() for name, parameter in model.named_parameters()}
        adamw.step()
        parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        records.append(Step(strategy, 0, loss, gradients, parameters))
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
            assert_sends_what_zero_1_does(step)


def assert_sends_what_zero_1_does(step: Step) -> None:
    """Compare with ZeRO-1, where D replicas scatter gradients and gather parameters among each other.

    That is D - 1 models each way, of any tensor and pipeline degree. The optimizer shards are the same for
    all strategies of the run, so a rank's shard is not always a part of its local shard: then up to one model
    more moves, and norms once for each tensor rank.
    """
    ((count, scheme),) = (part.split("x", 1) for part in step.strategy.split("+"))
    replicas, tp = int(count), Strategy(f"1x{scheme}").schemes[0].tp
    whole = sum(value.numel() for value in step.gradients.values())
    norms = sum(value.numel() for name, value in step.gradients.items() if "norm" in name)
    both_ways = 2 * torch.float64.itemsize
    sent, crossing = step.sent_bytes
    assert crossing == 0
    assert (replicas - 1) * whole <= sent / both_ways <= replicas * (whole + (tp - 1) * norms)
    if scheme == "<1>":
        assert sent == both_ways * (replicas - 1) * whole


@pytest.mark.parametrize(
    ("strategy", "node"),
    [("4x<tp2>", 8), ("2x<tp4>", 4), ("1x<tp2,cp2>+2x<tp2>", 8), ("2x<tp2,pp2>", 8), ("1x<tp2,cp2,pp2>", 4)],
)
@pytest.mark.devices
def test_ranks_with_constant_local_shards_send_the_bytes_of_zero_1(strategy: str, node: int) -> None:
    config = model_config(tie_word_embeddings=True)
    # Of the first batch replicas have no work.
    steps = [(strategy, batch) for batch in batches(2, config.vocab_size)]
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, ranks_per_node=node)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)
    assert_sends_what_replica_groups_exchange(result[1:])


def assert_sends_what_replica_groups_exchange(steps: list[Step]) -> None:
    """All ranks of a replica group but the owner send an element and get it back, as in ZeRO-1."""
    for step in steps:
        assert step.idle_ranks == 0
        sizes = {name: value.numel() for name, value in step.gradients.items()}
        norms = sum(size for name, size in sizes.items() if "norm" in name)
        held = 0
        for scheme in Strategy(step.strategy).schemes:
            embedding = sizes["embed_tokens.weight"] if scheme.pp > 1 else 0
            held += scheme.cp * (sum(sizes.values()) + (scheme.tp - 1) * norms + embedding)
        assert sum(step.sent_bytes) == 2 * torch.float64.itemsize * (held - sum(sizes.values()))


# A narrow rank's parameters arrive, and its gradients leave, in another order than that in which they lie.
@pytest.mark.parametrize(
    ("strategies", "node"),
    [
        (["2x<tp4>", "1x<tp4>+1x<tp2>+2x<1>", "1x<tp2,cp2>+4x<1>", "4x<tp2>", "8x<1>"], 8),
        (["1x<cp4>+2x<tp2>", "4x<tp2>", "2x<cp2>+2x<tp2>"], 4),
    ],
)
def test_ranks_with_nested_slices_send_the_bytes_of_zero_1(strategies: list[str], node: int) -> None:
    config = model_config(tie_word_embeddings=True)
    # Of the first batch replicas have no work.
    chosen = [strategies[0], *strategies, strategies[0]]
    # Enough sequences for every rank.
    steps = list(zip(chosen, batches(len(chosen), config.vocab_size, 24), strict=True))
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, ranks_per_node=node)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)
    assert_sends_what_replica_groups_exchange(result[1:])


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


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_one_process_in_float64(family: str) -> None:
    # On <tp4> two ranks hold each key/value head.
    config = model_config(num_key_value_heads=2, **FAMILIES[family])
    steps = list(zip(FAMILY_STRATEGIES, batches(len(FAMILY_STRATEGIES), config.vocab_size), strict=True))
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)


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
    count = 12 if IS_SOAK else 8
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


@pytest.mark.parametrize(("kinds", "kind"), CHECKPOINTED)
@pytest.mark.devices
def test_checkpointed_strategies_equal_one_process_in_float64(
    kinds: tuple[CheckpointingKind, ...], kind: ContextKind
) -> None:
    config = model_config(tie_word_embeddings=True, qk_norm=True)
    # Each list of kinds has its share of the strategies: the test below runs every list under the same ones.
    layouts = (*STRATEGIES[1:7], *CONTEXT_STRATEGIES[:8])
    first = CHECKPOINTED.index((kinds, kind))
    strategies = [checkpointed(strategy, kinds) for strategy in layouts[first :: len(CHECKPOINTED)]]
    steps = list(zip(strategies, batches(len(strategies), config.vocab_size), strict=True))
    result = run_ranks(8, train, config, OPTIMIZER, torch.float64, steps, kind)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)


@functools.cache
def with_every_bias(kinds: tuple[CheckpointingKind, ...], kind: ContextKind) -> list[Step]:
    """Train in float32, with these kinds of checkpointing in turn; without any if there are none."""
    config = model_config(**FAMILIES["every bias"])
    layouts = ("1x<tp2,cp2,pp2>", "1x<tp4,cp2>", "1x<cp2,pp3>+1x<tp2>", "1x<tp2,pp3>+1x<pp2>")
    strategies = [checkpointed(strategy, kinds or ("none",)) for strategy in layouts]
    steps = list(zip(strategies, batches(len(strategies), config.vocab_size), strict=True))
    result: list[Step] = run_ranks(8, train, config, OPTIMIZER, torch.float32, steps, kind)[0]
    return result


@pytest.mark.parametrize(("kinds", "kind"), CHECKPOINTED)
@pytest.mark.devices
def test_checkpointing_does_not_change_a_bit(kinds: Sequence[CheckpointingKind], kind: ContextKind) -> None:
    for one, other in zip(with_every_bias((), kind), with_every_bias(tuple(kinds), kind), strict=True):
        assert one.loss == other.loss
        for name in one.gradients:
            assert torch.equal(one.gradients[name], other.gradients[name]), (one.strategy, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_context_group_with_single_ranks_equals_one_process(kind: ContextKind) -> None:
    config = model_config(num_hidden_layers=1)
    many = [tokens for batch in batches(9, config.vocab_size)[1:] for tokens in batch]
    steps: list[tuple[str, Batch]] = [("1x<cp8>+8x<1>", many), ("16x<1>", many)]
    result = run_ranks(16, train, config, OPTIMIZER, torch.float64, steps, kind)[0]
    assert_equal(result, one_process(config, torch.float64, steps), 1e-10, 1e-10)
    assert result[0].idle_ranks == 0


def low_precision_steps(kind: ContextKind) -> list[tuple[str, Batch]]:
    """Give five steps whose rounding is compared with one process, then more that only repeat."""
    config = model_config(tie_word_embeddings=kind == "ulysses")
    compared = {
        "ulysses": STRATEGIES[:5],
        "ring": (*STRATEGIES[:3], *CONTEXT_STRATEGIES[2:4]),
    }[kind]
    more = [strategy for strategy in CONTEXT_STRATEGIES[1:4] if strategy not in compared]
    drawn = [*batches(5, config.vocab_size, 24), *batches(4, config.vocab_size)[1 : 1 + len(more)]]
    return list(zip([*compared, *more], drawn, strict=True))


@functools.cache
def run_twice(dtype: torch.dtype, kind: ContextKind) -> tuple[list[Step], list[Step]]:
    """Train twice from the start with the same steps."""
    config, steps = model_config(tie_word_embeddings=kind == "ulysses"), low_precision_steps(kind)
    first, second = (run_ranks(8, train, config, OPTIMIZER, dtype, steps, kind)[0] for _ in range(2))
    return first, second


@pytest.mark.devices
def test_float32_is_as_close_as_its_rounding_allows() -> None:
    result = run_twice(torch.float32, "ring")[0][:5]
    expected = one_process(model_config(), torch.float32, low_precision_steps("ring")[:5])
    assert_equal(result, expected, 1e-5, 1e-4)


@pytest.mark.devices
def test_bfloat16_is_as_close_as_its_rounding_allows() -> None:
    result = run_twice(torch.bfloat16, "ulysses")[0][:5]
    for step in result:
        for value in (*step.gradients.values(), *step.parameters.values()):
            assert value.dtype == torch.float32
    # One process in bfloat16 is off by as much: 15 % in the gradients of queries and keys.
    config = model_config(tie_word_embeddings=True)
    expected = one_process(config, torch.float64, low_precision_steps("ulysses")[:5])
    assert_equal(result, expected, 0.25, 2e-2)
    assert [step.loss for step in result] == pytest.approx([step.loss for step in expected], rel=1e-2)


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bfloat16, "ulysses"), (torch.float32, "ring")])
@pytest.mark.devices
def test_two_runs_are_equal_to_the_bit(dtype: torch.dtype, kind: ContextKind) -> None:
    first, second = run_twice(dtype, kind)
    for one, other in zip(first, second, strict=True):
        assert one.loss == other.loss
        for name in one.parameters:
            assert torch.equal(one.gradients[name], other.gradients[name]), name
            assert torch.equal(one.parameters[name], other.parameters[name]), name


def test_a_plan_for_other_ranks_model_or_sequences_is_refused_on_every_rank() -> None:
    codes = ["plan_mismatch", "scheme_model_mismatch", "plan_mismatch", "batch_empty"]
    # What one rank alone finds out when it reads.
    codes += [
        "plan_mismatch",
        "plan_mismatch",
        "token_out_of_range",
        "token_out_of_range",
        "sequence_unreadable",
    ]
    assert run_ranks(2, refusals) == [codes] * 2
