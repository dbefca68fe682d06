"""Work of different streams on the same memory is ordered by events: torch's sanitizer sees a missing one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import run_ranks
from runtime.redistribute.stream_races_workers import races

LENGTHS = [20, 30, 18, 9, 30, 7]
ON_ONE_NODE = ["side stream", "join", "parameters inside", "gradients inside", "messages"]
BETWEEN_NODES = ["parameters between", "gradients between"]
# Ranks, ranks of a node, and strategies: buffers change hands between steps.
CASES = [
    (2, 2, ["1x<pp2>", "1x<tp2>"], ON_ONE_NODE),
    (2, 1, ["1x<pp2>", "2x<1>"], ["side stream", "join", "messages", *BETWEEN_NODES]),
    (4, 2, ["1x<tp2,pp2>", "1x<pp3>+1x<1>"], ["parameters inside", "gradients inside", *BETWEEN_NODES]),
]


@pytest.mark.parametrize(("num_ranks", "node", "strategies", "left_out"), CASES)
def test_no_step_races_unless_a_wait_is_omitted(
    num_ranks: int, node: int, strategies: list[str], left_out: list[str]
) -> None:
    runs = ["", *left_out]
    by_rank = run_ranks(num_ranks, races, strategies, LENGTHS, runs, ranks_per_node=node)
    found = {wait: set().union(*(rank[place] for rank in by_rank)) for place, wait in enumerate(runs)}
    assert found.pop("") == set()
    assert [wait for wait, raced in found.items() if not raced] == []


def test_the_sanitizer_is_imported_where_it_is_used() -> None:
    # On a device its import changes torch for the whole process: see `ranks`.
    tests = Path(__file__).parents[2]
    program = "import sys, ranks, runtime.redistribute.stream_races_workers; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(tests)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert "ranks" in ended.stdout.split()
    assert "torch.cuda._sanitizer" not in ended.stdout.split()
