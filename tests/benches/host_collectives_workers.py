"""What the ranks of test_host_collectives.py do."""

import importlib
import sys

from helpers import ROOT
from hydraulis.runtime.ranks import host


def measured(ranks_per_node: int) -> tuple[int, dict[str, float]]:
    """Return the sockets that the levels take, and the times."""
    sys.path.insert(0, str(ROOT))
    bench = importlib.import_module("benches.host_collectives")
    host.disconnect()
    before = bench._sockets()
    figures = bench.measure(ranks_per_node, 2)
    return bench._sockets() - before, figures
