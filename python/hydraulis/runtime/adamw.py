"""AdamW over a flat share of the master parameters."""

import torch
from torch import Tensor, nn

from hydraulis.config.optimizer import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


class HomeAdamW:
    """Torch's fused AdamW on one rank's share; its moments are flat buffers beside the master parameters.

    Weight decay is applied to every parameter.

    Attributes:
        moments: flat, by torch's names of them, in the order of the master parameters.
        num_steps: updates made so far.

    Args:
        master: flat master parameters, updated in place.
        gradient: flat, read at each step.
        config: the settings.
    """

    def __init__(self, master: Tensor, gradient: Tensor, config: OptimizerConfig) -> None:
        self.moments: dict[str, Tensor] = {name: torch.zeros_like(master) for name in MOMENTS}
        self.num_steps = 0
        self._config = config
        leaf = nn.Parameter(master)
        leaf.grad = gradient
        # Fused on one flat tensor: 12.7 ms against 86 (foreach) and 125 (loop) for 20 M parameters on CPU.
        self._adamw = torch.optim.AdamW(
            [leaf],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )
        # Torch makes a leaf's state at its first step, unless it is there.
        self._counter = torch.zeros(())
        self._adamw.state[leaf] = {"step": self._counter, **self.moments}

    def step(self) -> None:
        """Update the master parameters from the gradient."""
        warmup = max(1, self._config.warmup_steps)
        self.num_steps += 1
        self._adamw.param_groups[0]["lr"] = self._config.learning_rate * min(1.0, self.num_steps / warmup)
        self._adamw.step()

    def resume(self, num_steps: int) -> None:
        """Go on after so many steps, whose moments have been put in place."""
        self.num_steps = num_steps
        self._counter.fill_(num_steps)
