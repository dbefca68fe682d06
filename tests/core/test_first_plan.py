"""What a planner can make ready is ready before its first plan."""

import subprocess
import sys


def test_the_first_plan_does_not_wait_for_numpy() -> None:
    code = """
import sys
from hydraulis import Cluster, CostProfile, Planner
assert "numpy" not in sys.modules
Planner(CostProfile.preset("llama-7b-a800"), Cluster(gpus=8, gpus_per_node=8))
assert "numpy" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
