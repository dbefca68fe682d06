"""Canonical order there and back, a tensor rank's slice is an interval, and initial values for any layout."""

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch

from helpers import at_least, refused
from hydraulis import Cluster, ParameterTable, Scheme
from hydraulis._core import OptimizerShards, Position, local_slices
from hydraulis.config.lora import Adapters
from hydraulis.model import init
from hydraulis.model.init import BLOCK, draw_elements
from hydraulis.model.parameters import row_of
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.runtime.state import local_shard
from hydraulis.runtime.state.local_shard import largest_stage
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters
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
                for slice_ in OptimizerShards(parameters.table, cluster, []).slices(rank)
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
        sum(slice_.end - slice_.start for slice_ in shards.slices(rank)) for rank in range(scheme.ranks)
    ]
    stage_group = scheme.ranks // scheme.pp
    of_stages = [sum(of_ranks[stage * stage_group : (stage + 1) * stage_group]) for stage in range(scheme.pp)]
    assert parameters.stage_elements(scheme, trained=True) == of_stages
    assert parameters.elements.trained == sum(of_stages)
    assert parameters.elements.frozen == 0


def test_adapters_are_trained_unless_a_pattern_freezes_them() -> None:
    config = small_config(adapters=Adapters(rank=3, alpha=6.0, targets=("k_proj",)))
    parameters = ModelParameters.from_config(config, ["model.layers.0.*"])
    trained = {name for name in parameters.names if parameters.is_trained(name)}
    module = "layers.{}.self_attn.k_proj.lora_{}.weight"
    assert trained == {module.format(layer, matrix) for layer in (1, 2) for matrix in "AB"}
    with refused("config_value", "train.frozen = ['*lora_*']", "adapter"):
        ModelParameters.from_config(config, ["*lora_*"])


SEED = 5
# The embedding and the head have 3.2 blocks each, the other matrices less than one.
CONFIG = small_config(vocab_size=3300, hidden_size=64, intermediate_size=96)
PARAMETERS = ModelParameters.from_config(CONFIG)
WHOLE = {
    name: draw_elements(name, 0, shape.numel(), CONFIG, SEED).double()
    for name, shape in PARAMETERS.shapes.items()
}


class Layout(NamedTuple):
    """Ranks, ranks of a node, and the schemes of the run."""

    ranks: int
    node: int
    schemes: tuple[str, ...]

    def shards(self) -> OptimizerShards:
        cluster = Cluster(gpus=self.ranks, gpus_per_node=self.node)
        return OptimizerShards(PARAMETERS.table, cluster, list(map(Scheme, self.schemes)))


LAYOUTS = [
    Layout(1, 1, ("<1>",)),
    Layout(3, 3, ("<1>",)),
    Layout(8, 8, ("<tp2>",)),
    Layout(8, 4, ("<tp2>", "<pp2>", "<1>")),
    Layout(64, 8, ("<tp2,pp2>", "<1>")),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_has_the_values_of_the_whole_parameters(layout: Layout) -> None:
    source, shards = InitialValues(PARAMETERS, SEED, torch.float64), layout.shards()
    owned = 0
    for rank in range(layout.ranks):
        for piece in shards.slices(rank):
            name = PARAMETERS.names[piece.parameter]
            drawn = source.read(name, piece.start, piece.end)
            assert torch.equal(drawn, WHOLE[name][piece.start : piece.end])
            owned += len(drawn)
    assert owned == sum(value.numel() for value in WHOLE.values())


def test_a_rank_draws_the_blocks_of_its_slices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int]] = []
    seed_of = init._block_seed

    def counted(name: str, block: int, seed: int) -> int:
        drawn.append((name, block))
        return seed_of(name, block, seed)

    monkeypatch.setattr(init, "_block_seed", counted)
    layout, source = Layout(64, 8, ("<1>",)), InitialValues(PARAMETERS, SEED, torch.float32)
    shards = layout.shards()
    for rank in range(layout.ranks):
        drawn.clear()
        wanted = set()
        for piece in shards.slices(rank):
            name = PARAMETERS.names[piece.parameter]
            source.read(name, piece.start, piece.end)
            if not name.endswith("norm.weight"):
                wanted |= {(name, block) for block in range(piece.start // BLOCK, -(-piece.end // BLOCK))}
        assert sorted(drawn) == sorted(wanted)
        # A 64th of a matrix lies in at most two blocks.
        most = 2 * sum(len(shape) > 1 for shape in PARAMETERS.shapes.values())
        assert len(drawn) <= most


def test_blocks_differ_and_join_without_a_gap() -> None:
    name = "lm_head.weight"
    blocks = WHOLE[name][: 3 * BLOCK].split(BLOCK)
    assert not any(torch.equal(one, next_one) for one, next_one in pairwise(blocks))
    source = InitialValues(PARAMETERS, SEED, torch.float64)
    across = source.read(name, BLOCK - 3, 2 * BLOCK + 3)
    assert torch.equal(across, WHOLE[name][BLOCK - 3 : 2 * BLOCK + 3])


def test_every_dtype_rounds_the_same_values() -> None:
    name = "lm_head.weight"
    for dtype in (torch.bfloat16, torch.float64):
        read = InitialValues(PARAMETERS, SEED, dtype).read(name, 0, 1000)
        assert read.dtype == dtype
        assert torch.equal(read, WHOLE[name][:1000].to(dtype))


def test_the_values_of_a_seed_stay() -> None:
    drawn = WHOLE["lm_head.weight"] / CONFIG.initializer_range
    picked = [drawn[index].item() for index in (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7)]
    assert picked == pytest.approx([1.321888, -0.076974, -1.595544, 0.013378, 0.945882], abs=2e-6)


def test_a_model_is_listed_once_and_its_stages_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with 16,000 layers takes seconds for each list of its parameters and of a rank's slices."""
    listed = ModelParameters.from_config(small_config(), ["model.layers.0.*"], [[2, 1]])
    assert ModelParameters.from_config(small_config(), ("model.layers.0.*",), ((2, 1),)) is listed
    assert ModelParameters.from_config(small_config(), ["model.layers.1.*"], [[2, 1]]) is not listed
    size = largest_stage(listed, Scheme("<tp2,pp2>"))
    monkeypatch.setattr(local_shard, "local_slices", lambda *_: pytest.fail("counted again"))
    assert largest_stage(listed, Scheme("<tp2,pp2>")) == size
