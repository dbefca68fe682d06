"""What every test runs under."""

import torch

# Ranks and the reference compute side by side on few cores: two threads each would wait for one another.
torch.set_num_threads(1)
