"""The bytes of each element of the training state, by the model's dtype and the optimizer.

A trained element has a parameter and a gradient on each rank whose local shard has it; at its owner a master
parameter, a gradient and its moments. A frozen element has its value alone.
"""

from typing import NamedTuple, Self

import torch

from hydraulis.config.run import RunConfig
from hydraulis.model.tensors import wide_dtype
from hydraulis.runtime.state.parameters import ElementCount


class StateBytes(NamedTuple):
    """Bytes of one element of the state.

    Attributes:
        narrow: Bytes of a parameter in local shards, and of a frozen one at its owner: the model's dtype.
        wide: Bytes of a gradient, a master parameter or a moment: at least float32.
        num_moments: Number of the optimizer's moments.
    """

    narrow: int
    wide: int
    num_moments: int

    @classmethod
    def of(cls, dtype: torch.dtype, num_moments: int) -> Self:
        """Return the bytes for a model's dtype and a number of moments."""
        return cls(dtype.itemsize, wide_dtype(dtype).itemsize, num_moments)

    @classmethod
    def of_run(cls, config: RunConfig) -> Self:
        """Return the bytes for a run's dtype and optimizer."""
        return cls.of(getattr(torch, config.train.dtype), len(config.optimizer.moments))

    def local(self, parameters: int, gradients: int) -> int:
        """Return the bytes of a local shard with these numbers of parameters and gradients."""
        return self.narrow * parameters + self.wide * gradients

    def optimizer(self, count: ElementCount) -> int:
        """Return the bytes of an optimizer shard."""
        return self.changed(count) + self.wide * count.trained + self.unchanged(count)

    def changed(self, count: ElementCount) -> int:
        """Return the bytes that a step changes and a checkpoint has: master parameters and moments."""
        return self.wide * (1 + self.num_moments) * count.trained

    def unchanged(self, count: ElementCount) -> int:
        """Return the bytes of frozen parameters, which a checkpoint has too."""
        return self.narrow * count.frozen

    def host_copy(self, count: ElementCount) -> int:
        """Return the most bytes of pinned memory that copies of an optimizer shard take (see `HostCopy`)."""
        changed = (1 + self.num_moments) * pinned_bytes(self.wide * count.trained)
        return changed + pinned_bytes(self.unchanged(count))


def pinned_bytes(nbytes: int) -> int:
    """Return the bytes of pinned memory that torch takes for a tensor: the next power of two.

    Args:
        nbytes: Bytes of the tensor; 0 takes none.
    """
    return 1 << (nbytes - 1).bit_length() if nbytes else 0
