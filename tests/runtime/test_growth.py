"""Steps under changing strategies let no process grow; `benches/soak.py` has the long form, with losses."""

import sys

import pytest

from ranks import run_ranks
from runtime.growth_workers import train

STRATEGIES = ["2x<1>", "1x<tp2>", "1x<pp2>", "1x<cp2>"]
ROUNDS, FIRST_ROUNDS = 30, 15
# The allocator's own growth falls from 10 to 1 KiB a step over 300 steps.
MOST_BYTES_PER_STEP = 32 * 1024
# A step may end while gloo still has a sent tensor.
SENT = 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_grows_from_step_to_step() -> None:
    for after in run_ranks(2, train, STRATEGIES, ROUNDS):
        first, last = after[FIRST_ROUNDS], after[-1]
        assert (last.files, last.threads, last.groups) == (first.files, first.threads, first.groups)
        assert last.tensors <= first.tensors + SENT
        steps = (ROUNDS - 1 - FIRST_ROUNDS) * len(STRATEGIES)
        assert last.memory - first.memory <= steps * MOST_BYTES_PER_STEP
