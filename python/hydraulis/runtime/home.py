"""Master parameters and optimizer state: an equal share on every rank, which never moves."""

from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydraulis._core import Home
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.model.init import initial_value
from hydraulis.runtime.parameters import ModelParameters


class HomeState:
    """This rank's share of the master parameters, their gradients and AdamW's moments.

    Kept in at least float32 whatever the model computes in. Weight decay is applied to every parameter.

    Attributes:
        layout: which elements of which parameter live on which rank.
        master: flat master parameters.
        gradient: flat, the sum of all contributions once they have arrived.

    Args:
        parameters: of the model.
        optimizer: AdamW's settings.
        dtype: of the model.
        seed: of the initial values; every rank makes the same ones, and keeps its share.
    """

    def __init__(
        self, parameters: ModelParameters, optimizer: OptimizerConfig, dtype: torch.dtype, seed: int
    ) -> None:
        self.layout = Home(parameters.table, dist.get_world_size())
        self._parameters = parameters
        self._slices = self.layout.slices(parameters.table, dist.get_rank())
        self._optimizer_config = optimizer
        master_dtype = torch.promote_types(dtype, torch.float32)
        self.master = self._initial(master_dtype, seed)
        self.gradient = torch.zeros_like(self.master)
        leaf = nn.Parameter(self.master)
        leaf.grad = self.gradient
        # Fused on one flat tensor: 12.7 ms against 86 (foreach) and 125 (loop) for 20 M parameters on CPU.
        self._adamw = torch.optim.AdamW(
            [leaf],
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self._num_steps = 0

    def step(self) -> None:
        """Update the master parameters from the gradient."""
        warmup = max(1, self._optimizer_config.warmup_steps)
        self._num_steps += 1
        self._adamw.param_groups[0]["lr"] = self._optimizer_config.learning_rate * min(
            1.0, self._num_steps / warmup
        )
        self._adamw.step()

    def gather(self, flat: Tensor) -> dict[str, Tensor] | None:
        """Put a home buffer of all ranks (`master` or `gradient`) together on rank 0. Collective.

        Returns:
            Whole parameters by name on rank 0, None elsewhere.
        """
        # Cloned, because a pickled view takes the whole buffer with it.
        shares = [
            (held.parameter, held.start, flat[held.offset : held.offset + held.end - held.start].clone())
            for held in self._slices
        ]
        gathered: list[list[tuple[int, int, Tensor]]] = [[]] * dist.get_world_size()
        dist.gather_object(shares, gathered if dist.get_rank() == 0 else None)
        if dist.get_rank() > 0:
            return None
        whole = {name: flat.new_empty(shape.numel()) for name, shape in self._parameters.shapes.items()}
        for parameter, start, values in chain.from_iterable(gathered):
            whole[self._parameters.names[parameter]][start : start + len(values)] = values
        return {name: self._parameters.view(values, name).contiguous() for name, values in whole.items()}

    def _initial(self, dtype: torch.dtype, seed: int) -> Tensor:
        pieces = [torch.empty(0, dtype=dtype)]
        for held in self._slices:
            name = self._parameters.names[held.parameter]
            shape, config = self._parameters.shapes[name], self._parameters.config
            value = initial_value(name, shape, config, seed, dtype)
            pieces.append(self._parameters.canonical(value, name)[held.start : held.end])
        return torch.cat(pieces)
