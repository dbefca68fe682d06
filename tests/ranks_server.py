"""What the fork server of ranks.py imports, so that ranks need not."""

import gc

# pytest too, because a child imports its parent's main module, which
# is pytest; torch._dynamo, because the first optimizer of a process imports it: 1.4 s of CPU for each rank.
import pytest
import torch._dynamo
import torch.distributed

import hydraulis.cli.commands.train
import hydraulis.cli.terminal.display
import hydraulis.train.run

__all__ = ["hydraulis", "pytest", "torch"]

# A rank that collects garbage would visit all that is imported, and copy every page of it: 0.3 s each time.
gc.collect()
gc.freeze()
