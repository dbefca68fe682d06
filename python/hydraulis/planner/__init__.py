"""Inputs of the planner from files and configurations, and comparisons of planners; needs numpy alone.

The planner itself is native code: `hydraulis.Planner` takes a `CostProfile`, a `Cluster` and the lengths of a
batch, and returns a `Plan`. A training loop of your own needs three calls:

>>> from hydraulis import Cluster, Planner
>>> from hydraulis.planner import load_profile
>>> profile = load_profile("llama-7b-a800")  # a preset, a profile's JSON file, or analytic:MODEL:DEVICE
>>> planner = Planner(profile, Cluster(gpus=16, gpus_per_node=8))
>>> plan = planner.plan([4_000, 2_000, 500])  # for every batch: the tokens of each sequence

`plan.replicas` has the ranks, the scheme and the micro-batches of each replica, and `plan.instructions(rank)`
the forward, backward and communication steps of a rank in their order.

- `load_profile` reads, finds or predicts a cost profile.
- `read_lengths` and `map_lengths` read the lengths of a data set.
- `compare` plans and simulates the same batches with several planners.
- `static` finds the best static strategy, which a whole run would keep.
"""

from hydraulis.planner.lengths import map_lengths, read_lengths
from hydraulis.planner.profile import load_profile

__all__ = ["load_profile", "map_lengths", "read_lengths"]
