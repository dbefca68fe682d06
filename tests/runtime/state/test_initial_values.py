"""Initial values: the same for any layout and number of ranks, each drawn by the ranks that own it."""

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch

from hydraulis import Cluster, Scheme
from hydraulis._core import OptimizerShards
from hydraulis.model import init
from hydraulis.model.init import BLOCK, initial_value
from hydraulis.runtime.state.initial_values import InitialValues
from hydraulis.runtime.state.parameters import ModelParameters
from small_model import small_config

SEED = 5
# The embedding and the head have 3.2 blocks each, the other matrices less than one.
CONFIG = small_config(vocab_size=3300, hidden_size=64, intermediate_size=96)
PARAMETERS = ModelParameters.from_config(CONFIG)
WHOLE = {
    name: PARAMETERS.canonical(initial_value(name, shape, CONFIG, SEED, torch.float64), name)
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
        for piece in shards.slices(PARAMETERS.table, rank):
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
        for piece in shards.slices(PARAMETERS.table, rank):
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


def test_the_values_of_a_seed_stay() -> None:
    drawn = WHOLE["lm_head.weight"] / CONFIG.initializer_range
    picked = [drawn[index].item() for index in (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7)]
    assert picked == pytest.approx([1.321888, -0.076974, -1.595544, 0.013378, 0.945882], abs=2e-6)
