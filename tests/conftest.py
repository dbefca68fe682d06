"""What every test runs under."""

import os

import torch

# Ranks and the reference compute side by side on few cores: two threads each would wait for one another.
torch.set_num_threads(1)
# Torch reads it at the first matrix product on CUDA, of whichever test, and a later one may be deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
