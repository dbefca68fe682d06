"""The rules by which micro-batches fit into memory, as planners, plans and configurations name them."""

from typing import Literal, TypeAlias

MemoryRule: TypeAlias = Literal["cap", "exact"]
"""How strictly memory limits the micro-batches of a pipeline.

`cap` lets each of them hold what all could at once; `exact` counts those that a pipeline does hold at once.
"""
