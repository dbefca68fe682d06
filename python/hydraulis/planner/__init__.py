"""The Python face of the planner: what is around it, and needs numpy and nothing else.

Planning itself is native: `Planner`, `Plan`, `CostProfile` and `Cluster` are in `hydraulis`. This package
brings cost profiles and lengths in from files, and compares plans with the best static strategy.
"""

from hydraulis.planner.lengths import map_lengths, read_lengths
from hydraulis.planner.profile import load_profile

__all__ = ["load_profile", "map_lengths", "read_lengths"]
