"""A cost profile as a table."""

import json

import pytest

from hydraulis import Cluster, CostProfile, Scheme
from hydraulis.cli.tables.profile_table import profile_table

PROFILE = CostProfile.preset("llama-32b-a800")


@pytest.mark.parametrize("gpus", [8, 64])
def test_caps_are_those_on_the_cluster_and_infeasible_schemes_have_none(gpus: int) -> None:
    cluster = Cluster(gpus=gpus, gpus_per_node=8)
    _, head, *rows = profile_table(PROFILE, cluster).splitlines()
    assert head.split()[-1] == "tokens"
    rows = [row for row in rows if row.startswith("<")]
    caps = {row.split()[0]: row.split()[-1] for row in rows}
    assert list(caps) == PROFILE.schemes
    # With its optimizer shard a narrow scheme fills 8 GPUs before the first token.
    assert (caps["<tp4>"] == "-") == (gpus == 8)
    assert caps["<tp8>"] == f"{PROFILE.cap_tokens(Scheme('<tp8>'), cluster):,}"


def test_the_least_time_of_a_scheme_has_a_column() -> None:
    document = json.loads(PROFILE.to_json())
    document["schemes"][0]["least_ms"] = 61.5
    _, head, first, second, *_ = profile_table(
        CostProfile.from_json(json.dumps(document)), Cluster(gpus=64, gpus_per_node=8)
    ).splitlines()
    end = head.index("(ms)", head.index("batch (ms)") + len("batch (ms)")) + len("(ms)")
    assert (first[:end].split()[-1], second[:end].split()[-1]) == ("61.500", "-")


def test_a_line_explains_the_columns() -> None:
    text = profile_table(PROFILE, Cluster(gpus=64, gpus_per_node=8))
    assert "per squared" in text.splitlines()[0]
    assert "A micro-batch takes the sum of the first three columns" in text
