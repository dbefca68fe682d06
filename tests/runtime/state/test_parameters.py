"""Canonical order: round transfer_spans, and a tensor rank's slice is an interval."""

import pytest
import torch

from helpers import at_least, refused
from hydraulis import Cluster, ParameterTable, Scheme
from hydraulis._core import OptimizerShards, Position, local_slices
from hydraulis.config.lora import Adapters
from hydraulis.model.parameters import row_of
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.runtime.state.parameters import ModelParameters
from small_model import FAMILIES, build_decoder, slice_rows, small_config


def numbered(shape: torch.Size) -> torch.Tensor:
    return torch.arange(shape.numel(), dtype=torch.float64).view(shape)


@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_of_the_decoder_is_in_the_table_once(*, tied: bool) -> None:
    config = small_config(tie_word_embeddings=tied)
    parameters = ModelParameters.from_config(config)
    named = dict(build_decoder(config).named_parameters())
    assert sorted(parameters.names) == sorted(named) == sorted(parameters.shapes)
    assert ("lm_head.weight" in parameters.names) is not tied
    for entry, name in zip(parameters.table.parameters, parameters.names, strict=True):
        assert entry.name == name
        assert entry.rows * entry.row_elements == named[name].numel()
        assert parameters.shapes[name] == named[name].shape
        assert (entry.units > 1) is (named[name].dim() > 1), name


@pytest.mark.parametrize("adapters", [None, Adapters(rank=3, alpha=6.0, targets=("k_proj", "o_proj"))])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_of_a_models_shape_equals_the_models(family: str, adapters: Adapters | None) -> None:
    config = small_config(**FAMILIES[family], adapters=adapters)
    fields = ("name", "rows", "row_elements", "units", "layer_groups", "trained")
    of_model, of_shape = (
        [[getattr(entry, field) for field in fields] for entry in at_least(20, table.parameters)]
        for table in (
            ModelParameters.from_config(config).table,
            ParameterTable.from_model(build_model_shape(config)),
        )
    )
    assert of_shape == of_model


def test_canonical_and_view_undo_each_other_for_every_parameter() -> None:
    parameters = ModelParameters.from_config(small_config())
    split_along = set()
    for name in at_least(20, parameters.names):
        split_along.add(row_of(name, parameters.config).split_dim)
        value = numbered(parameters.shapes[name])
        canonical = parameters.canonical(value, name)
        assert canonical.shape == (value.numel(),)
        assert torch.equal(parameters.view(canonical, name), value), name
    assert split_along == {0, 1, None}


def test_a_tensor_ranks_slice_is_an_interval_of_whole_rows() -> None:
    parameters = ModelParameters.from_config(small_config())
    for entry, name in zip(parameters.table.parameters, parameters.names, strict=True):
        dim = row_of(name, parameters.config).split_dim
        if dim is None:
            continue
        value = numbered(parameters.shapes[name])
        canonical = parameters.canonical(value, name)
        for tp in (1, 2, 4, 8):
            for tensor_rank in range(tp):
                rows = slice_rows(name, entry.rows, parameters.config, tp, tensor_rank)
                slice_ = canonical[rows.start * entry.row_elements : rows.stop * entry.row_elements]
                expected = value.narrow(dim, rows.start, len(rows))
                assert torch.equal(parameters.view(slice_, name), expected), (name, tp, tensor_rank)


def test_a_view_shares_its_memory_with_the_flat_buffer() -> None:
    parameters = ModelParameters.from_config(small_config())
    for name in parameters.names:
        flat = torch.zeros(parameters.shapes[name].numel())
        parameters.view(flat, name).fill_(1.0)
        assert flat.eq(1.0).all(), name


def test_layer_groups_are_the_embedding_the_layers_and_the_head() -> None:
    layer_groups = {
        entry.name: entry.layer_groups
        for entry in ModelParameters.from_config(small_config()).table.parameters
    }
    assert layer_groups.pop("embed_tokens.weight") == [0]
    assert layer_groups.pop("lm_head.weight") == [4]
    assert layer_groups.pop("norm.weight") == [4]
    for name in at_least(3 * 9, layer_groups):
        assert layer_groups[name] == [int(name.split(".")[1]) + 1], name


def test_a_tied_embedding_is_used_by_the_first_layer_group_and_the_head() -> None:
    config = small_config(tie_word_embeddings=True)
    layer_groups = {
        entry.name: entry.layer_groups for entry in ModelParameters.from_config(config).table.parameters
    }
    assert layer_groups["embed_tokens.weight"] == [0, 4]
    assert layer_groups["norm.weight"] == [4]


def test_the_table_is_in_bucket_order() -> None:
    buckets = [
        entry.layer_groups[0] for entry in ModelParameters.from_config(small_config()).table.parameters
    ]
    assert buckets == sorted(buckets)


def test_stages_have_the_stated_layers_and_optimizer_shards_ignore_them() -> None:
    config, cluster = small_config(tie_word_embeddings=True), Cluster(gpus=4, gpus_per_node=2)
    by_cost = ModelParameters.from_config(config)
    stated = ModelParameters.from_config(config, ["model.layers.1.*"], [[1, 2], [1, 1, 1]])

    def layers(parameters: ModelParameters, stage: int, *, trained: bool) -> set[str]:
        position = Position(Scheme("<tp2,pp2>"), stage=stage, context_rank=0, tensor_rank=0)
        slices = local_slices(parameters.table, position)
        indices = [slice_.parameter for slice_ in slices if parameters.trained[slice_.parameter] == trained]
        names = [parameters.names[index] for index in indices]
        return {name.split(".")[1] for name in names if name.startswith("layers.")}

    assert [layers(by_cost, stage, trained=True) for stage in (0, 1)] == [{"0", "1"}, {"2"}]
    assert [layers(stated, stage, trained=True) for stage in (0, 1)] == [{"0"}, {"2"}]
    assert [layers(stated, stage, trained=False) for stage in (0, 1)] == [set(), {"1"}]
    # So a checkpoint serves under any split: it is the optimizer shards.
    stated = ModelParameters.from_config(config, (), [[1, 2]])
    for rank in range(4):
        one, other = (
            [
                (slice_.parameter, slice_.start, slice_.end, slice_.offset)
                for slice_ in OptimizerShards(parameters.table, cluster, []).slices(parameters.table, rank)
            ]
            for parameters in (by_cost, stated)
        )
        assert one == other
        assert one


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("text", ["<1>", "<pp3>", "<tp2,pp2>", "<cp2,pp2>"])
def test_a_stages_ranks_own_its_optimizer_state_if_the_run_has_one_scheme(text: str, *, tied: bool) -> None:
    scheme = Scheme(text)
    parameters = ModelParameters.from_config(small_config(tie_word_embeddings=tied))
    shards = OptimizerShards(
        parameters.table, Cluster(gpus=scheme.ranks, gpus_per_node=scheme.ranks), [scheme]
    )
    of_ranks = [
        sum(slice_.end - slice_.start for slice_ in shards.slices(parameters.table, rank))
        for rank in range(scheme.ranks)
    ]
    stage_group = scheme.ranks // scheme.pp
    of_stages = [sum(of_ranks[stage * stage_group : (stage + 1) * stage_group]) for stage in range(scheme.pp)]
    assert parameters.stage_elements(scheme, trained=True) == of_stages
    assert parameters.num_elements(trained=True) == sum(of_stages)
    assert parameters.num_elements(trained=False) == 0


def test_adapters_are_trained_unless_a_pattern_freezes_them() -> None:
    config = small_config(adapters=Adapters(rank=3, alpha=6.0, targets=("k_proj",)))
    parameters = ModelParameters.from_config(config, ["model.layers.0.*"])
    trained = {name for name in parameters.names if parameters.is_trained(name)}
    module = "layers.{}.self_attn.k_proj.lora_{}.weight"
    assert trained == {module.format(layer, matrix) for layer in (1, 2) for matrix in "AB"}
    with refused("config_value", "names every adapter"):
        ModelParameters.from_config(config, ["*lora_*"])
