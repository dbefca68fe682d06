"""The module that the fork server of local ranks imports: torch, and the parts of a training run.

A rank is a copy of the server, so its process has loaded all of this. The server uses no device, since a
process that has started CUDA cannot be forked.
"""

import gc
import os
import signal

# The first optimizer of a process would import it: 1.4 s of CPU time.
import torch._dynamo
import torch.distributed

import hydraulis.cli.commands.train
import hydraulis.cli.terminal.display
import hydraulis.train.run
from hydraulis.cli.ranks.forked_rank import HELD_BACK, SERVER
from hydraulis.cli.ranks.report import PARENT, signal_at_end_of_parent

__all__ = ["hydraulis", "torch"]

if os.environ.pop(SERVER, ""):
    # A terminal's hang-up, and a batch system's request to end, reach all processes of a job.
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    os.setpgid(0, 0)
    signal_at_end_of_parent(int(os.environ[PARENT]), signal.SIGKILL)
    # A rank that collects garbage would visit all that is loaded, and copy every page of it: 0.3 s each time.
    gc.collect()
    gc.freeze()
