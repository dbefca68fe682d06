"""The Python face of the planner: where cost profiles and lengths come from.

Planning itself is native: `Planner`, `Plan`, `CostProfile` and `Cluster` are in `hydraulis`. This package
only brings their inputs in from files. It needs numpy and nothing else.
"""

from hydraulis.planner.lengths import read_lengths
from hydraulis.planner.profile import load_profile

__all__ = ["load_profile", "read_lengths"]
