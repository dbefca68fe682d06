"""Master parameters and optimizer state: a share on every rank, which never moves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Cluster, Home, Scheme
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.model.parameters import checkpoint_name
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.ranks.device import CPU
from hydraulis.runtime.ranks.streams import Landmark
from hydraulis.runtime.state.adamw import MOMENTS, HomeAdamW, Run, Update
from hydraulis.runtime.state.initial_values import ParameterValues
from hydraulis.runtime.state.parameters import ModelParameters


def num_home_buffers(parameters: ModelParameters) -> int:
    """Count the buffers of a share: masters, gradients and moments; of frozen parameters masters alone."""
    return 2 + len(MOMENTS) if parameters.trained else 1


@dataclass(frozen=True, slots=True)
class HomePlace:
    """Where home is.

    Attributes:
        device: of this rank's share.
        cluster: of all ranks, whose nodes decide which elements live where; None for one node.
        schemes: of the run; where what a rank holds by one of them is a part of
            what it holds by each, its share is of that.
    """

    device: torch.device = CPU
    cluster: Cluster | None = None
    schemes: Sequence[Scheme] = ()


class HomeShare:
    """This rank's share of some master parameters.

    Kept in at least float32 whatever the model computes in.

    Attributes:
        parameters: all of them, of which every rank has a share.
        layout: which elements of which parameter live on which rank.
        slices: of this rank, in the order of its flat buffers.
        master: flat master parameters.
        gradient: flat, the sum of all contributions once they have arrived; empty if they are frozen.

    Args:
        parameters: to share out.
        dtype: of the model.
        values: gives the first ones; asked for this rank's share alone.
        place: of the share; the CPU of one node if left out.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        dtype: torch.dtype,
        values: ParameterValues,
        place: HomePlace | None = None,
    ) -> None:
        self.parameters = parameters
        place = place or HomePlace()
        cluster = place.cluster or Cluster(dist.get_world_size(), dist.get_world_size())
        self.layout = Home(parameters.table, cluster, place.schemes)
        self.slices = self.layout.slices(parameters.table, dist.get_rank())
        wide = wide_dtype(dtype)
        elements = sum(held.end - held.start for held in self.slices)
        self.master = torch.empty(elements, dtype=wide, device=place.device)
        for held in self.slices:
            name = parameters.names[held.parameter]
            own = slice(held.offset, held.offset + held.end - held.start)
            self.master[own] = values.read(name, held.start, held.end)
        self.gradient = torch.zeros_like(self.master if parameters.trained else self.master[:0])
        self._readers: list[Landmark] = []

    def buffers(self) -> Mapping[str, Tensor]:
        """Give the flat buffers that a checkpoint holds, by what they are."""
        return {"master": self.master}

    def read_until(self, end: Landmark) -> None:
        """Let no step change the buffers before this point, up to which they are read beside computation."""
        if self.parameters.trained:
            self._readers.append(end)

    def wait_for_readers(self) -> None:
        """Wait for all who read the buffers beside computation: on CUDA the stream does, not the host."""
        for end in self._readers:
            end.wait()
        self._readers.clear()


class HomeState(HomeShare):
    """This rank's share of the parameters that are trained, with AdamW's moments.

    Attributes:
        optimizer: what updates the master parameters from the gradient.

    Args:
        parameters: that are trained.
        optimizer: AdamW's settings.
        dtype: of the model.
        values: gives the first master parameters; asked for this rank's share alone.
        steps: of the whole run, for the learning rate's schedule.
        place: of the share; the CPU of one node if left out.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        optimizer: OptimizerConfig,
        dtype: torch.dtype,
        values: ParameterValues,
        steps: int,
        place: HomePlace | None = None,
    ) -> None:
        super().__init__(parameters, dtype, values, place)
        runs = self._runs(optimizer.no_decay)
        self.optimizer = HomeAdamW(self.master, self.gradient, runs, optimizer, steps)

    def step(self) -> Update:
        """Update the master parameters from the gradient. Collective; see `HomeAdamW.step`."""
        self.wait_for_readers()
        return self.optimizer.step()

    def buffers(self) -> Mapping[str, Tensor]:
        """Give the flat buffers that a checkpoint holds, by what they are."""
        return {**super().buffers(), **self.optimizer.moments}

    def _runs(self, no_decay: Sequence[str]) -> list[Run]:
        """Join neighbouring slices that are decayed alike."""
        runs: list[Run] = []
        for held in self.slices:
            name = checkpoint_name(self.parameters.names[held.parameter])
            decayed = not any(fnmatchcase(name, pattern) for pattern in no_decay)
            end = held.offset + held.end - held.start
            if runs and runs[-1].decayed == decayed:
                runs[-1] = runs[-1]._replace(end=end)
            else:
                runs.append(Run(held.offset, end, decayed))
        return runs
