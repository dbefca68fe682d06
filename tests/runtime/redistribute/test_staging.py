"""Largest sizes of the staging; test_redistribution.py shows that they suffice."""

from collections import Counter

import pytest

from hydraulis import Cluster, Scheme
from hydraulis._core import OptimizerShards
from hydraulis.runtime.redistribute.staging import StagingSizes
from hydraulis.runtime.state.parameters import ModelParameters
from small_model import small_config

CONFIG = small_config(vocab_size=512, num_attention_heads=4, num_key_value_heads=4)
PARAMETERS = ModelParameters.from_config(CONFIG)
# The head's, which is the largest.
BUCKET = CONFIG.vocab_size * CONFIG.hidden_size


def sizes(schemes: list[str], node: int) -> StagingSizes:
    cluster = Cluster(gpus=8, gpus_per_node=node)
    parsed = [Scheme(text) for text in schemes]
    layout = OptimizerShards(PARAMETERS.table, cluster, parsed)
    return StagingSizes.from_schemes(PARAMETERS, layout, cluster, parsed, trained=True)


@pytest.mark.parametrize(
    ("schemes", "share", "norms"),
    [(["<1>"], 1, 1), (["<tp4>"], 4, 8), (["<tp4>", "<tp2>"], 2, 8), (["<cp4>", "<tp4>"], 1, 8)],
)
def test_received_bytes_are_at_most_the_local_shard_of_the_narrowest_scheme(
    schemes: list[str], share: int, norms: int
) -> None:
    # The last norm lies beside the head; tensor ranks hold it alike.
    expected = BUCKET // share + norms * CONFIG.hidden_size
    assert sizes(schemes, 8) == StagingSizes(BUCKET + CONFIG.hidden_size, expected, 0)


@pytest.mark.parametrize("schemes", [["<1>"], ["<tp2>"], ["<tp2>", "<pp2>"]])
@pytest.mark.parametrize("node", [1, 2, 4, 8])
def test_the_largest_piece_is_found_without_a_look_at_each_rank(schemes: list[str], node: int) -> None:
    parameters = ModelParameters.from_config(CONFIG, frozen=("model.layers.0.*",))
    table = parameters.table
    layout = OptimizerShards(table, Cluster(8, node), [Scheme(text) for text in schemes])
    owned = Counter[tuple[bool, int, int]]()
    for rank in range(8):
        for piece in layout.slices(rank):
            entry = table.parameters[piece.parameter]
            owned[entry.trained, entry.layer_groups[0], rank] += piece.end - piece.start
    largest = [max(size for key, size in owned.items() if key[0] == trained) for trained in (True, False)]
    assert list(layout.largest_pieces()) == largest


def test_nodes_relay_the_elements_of_a_rail() -> None:
    # A half of a bucket on either rail of nodes of two ranks.
    assert sizes(["<1>"], 2).relayed == pytest.approx(BUCKET / 2, rel=0.05)
