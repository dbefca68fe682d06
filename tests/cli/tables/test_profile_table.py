"""A cost profile as a table."""

import pytest

from hydraulis import Cluster, CostProfile, Scheme
from hydraulis.cli.tables.profile_table import describe

PROFILE = CostProfile.preset("llama-32b-a800")


@pytest.mark.parametrize("gpus", [8, 64])
def test_caps_are_those_on_the_cluster_and_no_scheme_fails_the_table(gpus: int) -> None:
    cluster = Cluster(gpus=gpus, gpus_per_node=8)
    head, *rows = describe(PROFILE, cluster).splitlines()
    assert head.split()[-1] == "cap"
    caps = {row.split()[0]: row.split()[-1] for row in rows}
    assert list(caps) == PROFILE.schemes
    # With their share of the optimizer state narrow ones fill 8 GPUs before the first token.
    assert (caps["<tp4>"] == "-") == (gpus == 8)
    assert caps["<tp8>"] == f"{PROFILE.cap_tokens(Scheme('<tp8>'), cluster):,}"
