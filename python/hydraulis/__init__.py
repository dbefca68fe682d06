"""Hydraulis plans each training iteration for sequences of very different lengths.

A parallel layout wide enough for the longest sequence of a batch is too wide for all others. The planner
therefore chooses a strategy for every batch: a set of replicas of the model, each with its own degrees of
tensor, context and pipeline parallelism. It assigns each sequence to a replica and packs each replica's
sequences into micro-batches, so that the slowest replica ends as early as possible within every rank's
memory.

The planner needs a cost profile (the model's times and memory), a cluster, and the token count of each
sequence. It needs no GPU, no torch and no data files:

>>> from hydraulis import Cluster, CostProfile, Planner
>>> planner = Planner(CostProfile.preset("llama-32b-a800"), Cluster(gpus=64, gpus_per_node=8))
>>> plan = planner.plan([31_000, 12_000, 900, 900, 450, 80])
>>> plan.strategy
'1x<tp16>+6x<tp8>'
>>> [replica.micro_batches for replica in plan.replicas[:2]]  # indices of the batch's sequences
[[[0]], [[1]]]
>>> f"{plan.iteration_ms:,.0f} ms, at most {100 * plan.gap:.1f} % above the best plan of these strategies"
'4,645 ms, at most 0.0 % above the best plan of these strategies'

Other functions work without a planner: `balance` assigns a batch to data-parallel replicas, `pack_windows`
packs a data set into context windows, and `propose` finds a list of strategies for given batches.
`hydraulis.planner` reads cost profiles and lengths from files. The command `hydraulis train` trains by plans.

Importing the package imports neither torch nor rich.
"""

from hydraulis._core import (
    Balance,
    BalanceOptions,
    Cluster,
    CostProfile,
    Extrapolation,
    GpuTime,
    LayerSplit,
    LengthHistogram,
    Link,
    LinkRates,
    LookaheadPlan,
    ModelShape,
    Network,
    Parameter,
    ParameterTable,
    Plan,
    Planner,
    Proposal,
    ProposedStrategy,
    RankMemory,
    Replica,
    Scheme,
    SearchBudget,
    Simulation,
    StageRun,
    Strategy,
    TransferSpan,
    Windows,
    balance,
    pack_windows,
    propose,
)
from hydraulis.errors import HydraulisError, InfeasibleError, InvalidInputError

__all__ = [
    "Balance",
    "BalanceOptions",
    "Cluster",
    "CostProfile",
    "Extrapolation",
    "GpuTime",
    "HydraulisError",
    "InfeasibleError",
    "InvalidInputError",
    "LayerSplit",
    "LengthHistogram",
    "Link",
    "LinkRates",
    "LookaheadPlan",
    "ModelShape",
    "Network",
    "Parameter",
    "ParameterTable",
    "Plan",
    "Planner",
    "Proposal",
    "ProposedStrategy",
    "RankMemory",
    "Replica",
    "Scheme",
    "SearchBudget",
    "Simulation",
    "StageRun",
    "Strategy",
    "TransferSpan",
    "Windows",
    "balance",
    "pack_windows",
    "propose",
]
