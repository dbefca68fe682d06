"""Hydraulis: plans every training iteration anew for variable-length sequences.

>>> from hydraulis import Cluster, CostProfile, Planner
>>> planner = Planner(CostProfile.preset("llama-32b-a800"), Cluster(gpus=64, gpus_per_node=8))
>>> plan = planner.plan([31_000, 12_000, 900, 900, 450, 80])
>>> plan.strategy
'1x<tp16>+6x<tp8>'

Importing the package imports neither torch nor rich.
"""

from hydraulis._core import (
    Balance,
    Cluster,
    CostProfile,
    Effort,
    GpuTime,
    Guess,
    LayerSplit,
    LengthHistogram,
    Link,
    LinkRates,
    ModelShape,
    Network,
    PaperStrategy,
    Parameter,
    ParameterTable,
    Plan,
    Planner,
    Proposal,
    ProposedStrategy,
    RankMemory,
    Replica,
    Scheme,
    Simulation,
    StageRun,
    Strategy,
    Trip,
    WindowPlan,
    Windows,
    balance,
    pack_windows,
    propose,
    propose_paper,
)
from hydraulis.errors import HydraulisError, InfeasibleError, InvalidInputError

__all__ = [
    "Balance",
    "Cluster",
    "CostProfile",
    "Effort",
    "GpuTime",
    "Guess",
    "HydraulisError",
    "InfeasibleError",
    "InvalidInputError",
    "LayerSplit",
    "LengthHistogram",
    "Link",
    "LinkRates",
    "ModelShape",
    "Network",
    "PaperStrategy",
    "Parameter",
    "ParameterTable",
    "Plan",
    "Planner",
    "Proposal",
    "ProposedStrategy",
    "RankMemory",
    "Replica",
    "Scheme",
    "Simulation",
    "StageRun",
    "Strategy",
    "Trip",
    "WindowPlan",
    "Windows",
    "balance",
    "pack_windows",
    "propose",
    "propose_paper",
]
