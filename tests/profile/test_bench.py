"""The placement of measured replicas."""

import pytest

from hydraulis import Cluster, InvalidInputError, Scheme, Strategy
from hydraulis.profile.bench import place_replicas


@pytest.mark.parametrize(
    ("scheme", "gpus", "node", "first_ranks"),
    [
        ("<1>", 3, 3, [0, 1, 2]),
        ("<tp2>", 3, 3, [0]),
        ("<tp4,pp2>", 16, 8, [0, 8]),
        # Side by side over all ranks the second would have ranks of two nodes.
        ("<tp6>", 16, 8, [0, 8]),
        ("<tp3>", 16, 8, [0, 3, 8, 11]),
        ("<cp5>", 16, 8, [0, 8]),
        ("<tp16>", 32, 8, [0, 16]),
    ],
)
def test_replicas_are_measured_where_plans_place_them(
    scheme: str, gpus: int, node: int, first_ranks: list[int]
) -> None:
    cluster = Cluster(gpus=gpus, gpus_per_node=node)
    replicas = place_replicas(Scheme(scheme), cluster)
    assert [ranks[0] for ranks in replicas] == first_ranks
    assert replicas == Strategy(f"{len(first_ranks)}x{scheme}").place(cluster)


def test_a_scheme_without_a_place_is_refused() -> None:
    with pytest.raises(InvalidInputError) as refusal:
        place_replicas(Scheme("<tp12>"), Cluster(gpus=16, gpus_per_node=8))
    assert refusal.value.code == "strategy_unplaceable"
