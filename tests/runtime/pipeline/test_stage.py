"""A stage is a decoder over the local shard, built once; the stages together equal the decoder."""

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import refused
from hydraulis import Scheme
from hydraulis._core import Position, local_slices
from hydraulis.config.kinds import ShardingKind
from hydraulis.config.model import ModelConfig
from hydraulis.data.collate import PackedMicroBatch, collate
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import master_parameter_name
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.runtime.pipeline.stage import Stage, StageKinds, cut_stage
from hydraulis.runtime.state.local_shard import LocalShard
from hydraulis.runtime.state.parameters import ModelParameters
from ranks import run_ranks
from runtime.pipeline.stage_workers import context_stages, stages_are_kept
from small_model import (
    SEED,
    bind_parameters,
    build_decoder,
    count_targets,
    initial_value,
    logits_of,
    random_tokens,
    small_config,
    token_loss,
)

WHOLE = Position.all(Scheme("<1>"))[0]


def build(
    config: ModelConfig,
    position: Position,
    dtype: torch.dtype = torch.float64,
    sharding: ShardingKind = "none",
) -> tuple[Stage, LocalShard, ModelParameters]:
    """Make a stage of tensor degree 1, which needs no process group, over buffers of random values."""
    parameters = ModelParameters.from_config(config)
    buffers = LocalShard(parameters, [Scheme("<1>")], dtype, sharding=sharding)
    buffers.parameter.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(1))
    groups = ProcessGroups(timeout=None)  # type: ignore[arg-type]
    return (
        Stage(position, StageKinds(context=None), position.stage, groups, buffers),
        buffers,
        parameters,
    )


def micro_batch(config: ModelConfig, seed: int = 2) -> PackedMicroBatch:
    rng = np.random.default_rng(seed)
    return collate([rng.integers(config.vocab_size, size=n).astype(np.uint8) for n in (9, 4)], multiple=1)


def fill(buffers: LocalShard, parameters: ModelParameters, seed: int) -> dict[str, Tensor]:
    """Put initial values where the whole model's slices are."""
    values = {}
    for held in local_slices(parameters.table, WHOLE):
        name = parameters.names[held.parameter]
        values[name] = initial_value(name, parameters.config, seed, torch.float64)
        end = held.offset + values[name].numel()
        buffers.parameter[held.offset : end] = parameters.canonical(values[name], name)
    return values


def reference(config: ModelConfig, values: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    with torch.device("meta"):
        model = Decoder(config)
    bind_parameters(model, lambda name: values[name].clone())
    batch = micro_batch(config)
    loss = token_loss(logits_of(model, batch.token_t, batch.sequences), batch.target_t, 11)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss.item(), {name: grad for name, grad in gradients.items() if grad is not None}


@pytest.mark.parametrize("tied", [False, True])
def test_loss_and_gradients_are_the_decoders_for_any_content_of_the_buffers(*, tied: bool) -> None:
    config = small_config(tie_word_embeddings=tied)
    stage, buffers, parameters = build(config, WHOLE)
    for seed in (SEED, SEED + 1):
        expected_loss, expected = reference(config, fill(buffers, parameters, seed))
        buffers.gradient.zero_()
        loss = stage.forward(None, micro_batch(config), 11)
        loss.backward()
        assert loss.item() == pytest.approx(expected_loss, rel=1e-12)
        for held in local_slices(parameters.table, WHOLE):
            name = parameters.names[held.parameter]
            place = slice(held.offset, held.offset + parameters.shapes[name].numel())
            gradient = parameters.view(buffers.gradient[place], name)
            torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-13, msg=name)


def test_gradients_accumulate_in_the_buffer() -> None:
    config = small_config()
    stage, buffers, _ = build(config, WHOLE)
    stage.forward(None, micro_batch(config), 11).backward()
    once = buffers.gradient.clone()
    stage.forward(None, micro_batch(config), 11).backward()
    torch.testing.assert_close(buffers.gradient, 2 * once)
    assert once.abs().max() > 0


@pytest.mark.parametrize(("sharding", "is_added"), [("none", True), ("gradients", False)])
def test_the_head_adds_its_gradient_directly_unless_a_hook_makes_room_for_it(
    sharding: ShardingKind, *, is_added: bool
) -> None:
    config = small_config()
    stage, _, _ = build(config, WHOLE, sharding=sharding)
    assert stage.module.lm_head is not None
    returned: list[Tensor | None] = []
    stage.module.lm_head.weight.register_hook(returned.append)
    stage.forward(None, micro_batch(config), 11).backward()
    (gradient,) = returned
    assert (gradient is None) is is_added


@pytest.mark.parametrize("tied", [False, True])
def test_bfloat16_gradients_are_added_up_in_float32(*, tied: bool) -> None:
    config = small_config(tie_word_embeddings=tied, attention_bias=True)
    stage, buffers, _ = build(config, WHOLE, torch.bfloat16)
    parts = []
    for seed in (2, 3):
        buffers.gradient.zero_()
        stage.forward(None, micro_batch(config, seed), 11).backward()
        parts.append(buffers.gradient.clone())
    stage.forward(None, micro_batch(config, 2), 11).backward()
    assert buffers.gradient.dtype == torch.float32
    assert torch.equal(buffers.gradient, parts[1] + parts[0])
    # What bfloat16 would have made of the sum.
    assert not torch.equal(buffers.gradient, buffers.gradient.bfloat16().float())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("place", Position.all(Scheme("<1>")) + Position.all(Scheme("<pp2>")))
def test_parameters_and_gradients_are_views_that_fill_the_stages_part_of_the_buffers(
    place: Position, *, tied: bool
) -> None:
    stage, buffers, parameters = build(small_config(tie_word_embeddings=tied), place)
    held = sum(part.elements for part in local_slices(parameters.table, place))
    buffers.parameter.zero_()
    buffers.gradient.zero_()
    with torch.no_grad():
        for parameter in stage.module.parameters():
            assert parameter.grad is not None
            assert parameter.untyped_storage().data_ptr() == buffers.parameter.untyped_storage().data_ptr()
            parameter.add_(1)
            parameter.grad.add_(1)
    for flat in (buffers.parameter, buffers.gradient):
        assert flat[:held].eq(1).all()
        assert flat[held:].eq(0).all()


def test_a_pipelines_stages_hold_every_master_parameter() -> None:
    for tied in (False, True):
        config = small_config(tie_word_embeddings=tied)
        names = []
        for place in Position.all(Scheme("<pp3>")):
            stage, _, parameters = build(config, place)
            names += [master_parameter_name(name, config) for name, _ in stage.module.named_parameters()]
            assert (stage.is_first, stage.is_last) == (place.stage == 0, place.stage == 2)
        assert set(names) == set(parameters.names)
        # Both ends hold a tied embedding; nothing else is held twice.
        assert len(names) == len(parameters.names) + tied


def test_both_ends_of_tied_weights_are_one_parameter() -> None:
    stage, _, _ = build(small_config(tie_word_embeddings=True), WHOLE)
    assert stage.module.embed_tokens is not None
    assert stage.module.lm_head is not None
    assert stage.module.embed_tokens.weight is stage.module.lm_head.weight


def test_a_stage_in_the_middle_takes_and_gives_hidden_states() -> None:
    config = small_config()
    stage, _, _ = build(config, Position.all(Scheme("<pp3>"))[1])
    batch = micro_batch(config)
    assert stage.hidden_shape(batch) == (13, config.hidden_size)
    output = stage.forward(torch.randn(stage.hidden_shape(batch), dtype=stage.dtype), batch, 11)
    assert output.shape == stage.hidden_shape(batch)


def test_stages_are_built_once_and_split_hidden_states_over_tensor_ranks() -> None:
    assert run_ranks(2, stages_are_kept) == [(True, True, (6, 24))] * 2


def test_context_ranks_split_tokens_by_their_kind() -> None:
    # Padded to 12: runs of 6, or the outer and the inner chunks of 11 tokens with one of padding.
    (kept, first, shape), (also_kept, second, also_shape) = run_ranks(2, context_stages)
    assert (kept, also_kept, shape, also_shape) == (True, True, 6, 6)
    assert (first[0], second[0]) == ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 0))
    assert (first[1], second[1]) == ((0, 1, 2, 8, 9, 10), (3, 4, 5, 6, 7, 0))


LENGTHS = [5, 9, 2]


def cut(layers: range, *, first: bool = False, last: bool = False, tied: bool = False) -> Decoder:
    model = build_decoder(small_config(tie_word_embeddings=tied))
    cut_stage(model, layers, first=first, last=last)
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_the_stages_together_equal_the_decoder(*, tied: bool) -> None:
    whole = build_decoder(small_config(tie_word_embeddings=tied))
    stages = [
        cut(range(1), first=True, tied=tied),
        cut(range(1, 3), tied=tied),
        cut(range(3, 3), last=True, tied=tied),
    ]
    token_T, target_T = random_tokens(whole.config, LENGTHS, padded=False)
    sequences, denominator = PackedSequences.from_lengths(LENGTHS, "cpu"), count_targets(target_T)

    loss = token_loss(logits_of(whole, token_T, sequences), target_T, denominator)
    loss.backward()
    x = token_T
    for stage in stages:
        x = stage(x, sequences)
    head = stages[-1].lm_head
    assert head is not None
    stage_loss = token_loss(head(x), target_T, denominator)
    stage_loss.backward()

    assert stage_loss.item() == loss.item()
    gradient: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            assert parameter.grad is not None
            name = master_parameter_name(name, whole.config)
            gradient[name] = gradient[name] + parameter.grad if name in gradient else parameter.grad
    expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


def test_layers_keep_their_global_names() -> None:
    names = {name for name, _ in cut(range(1, 2)).named_parameters()}
    assert names
    assert all(name.startswith("layers.1.") for name in names)


def test_a_tied_head_without_its_embedding_has_its_own_parameter() -> None:
    assert "lm_head.weight" in dict(cut(range(2, 3), last=True, tied=True).named_parameters())


def test_a_stage_that_is_first_and_last_stays_tied() -> None:
    model = cut(range(3), first=True, last=True, tied=True)
    assert model.embed_tokens is not None
    assert model.lm_head is not None
    assert model.lm_head.weight is model.embed_tokens.weight


def test_a_layer_beyond_the_last_is_refused() -> None:
    with refused("argument_invalid", "layer 3", "0, 1, 2"):
        cut(range(2, 4))
