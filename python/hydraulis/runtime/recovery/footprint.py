"""The host memory and the messages that copies of the state take, from a run's configuration."""

from dataclasses import dataclass

from hydraulis._core import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.runtime.recovery.keeper import COPIES_AT_ONCE
from hydraulis.runtime.recovery.twins import has_twins
from hydraulis.runtime.state.parameters import ElementCount, ModelParameters
from hydraulis.runtime.state.state_bytes import StateBytes

# A checkpoint's snapshot and a copy of the state may be in host memory at the same time.
_HOST_COPIES = 2


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one node, the mean over all nodes.

    Attributes:
        files: Most bytes of the files in `checkpoint.memory_folder`.
        first: Bytes of the files with the first copy alone.
        buffers: Most further bytes of host memory: the pinned memory of a copy and of a checkpoint's
            snapshot, as torch rounds it up on CUDA (see `HostCopy`), and the twins that are received. Each
            rank is counted with an even share of the elements.
        sent: Bytes that the node sends to the next one, and receives, with each copy; 0 without twins.
    """

    files: int
    first: int
    buffers: int
    sent: int

    @classmethod
    def of(cls, config: RunConfig, cluster: Cluster) -> "Footprint":
        """Count the bytes of a run on a cluster."""
        of_element = StateBytes.of_run(config)
        nodes = max(1, cluster.gpus // cluster.gpus_per_node)
        total = ModelParameters.from_config(config.model, config.train.frozen).elements
        of_node, of_rank = (_share(total, parts) for parts in (nodes, cluster.gpus))
        # Frozen parameters are copied once.
        changed, unchanged = of_element.changed(of_node), of_element.unchanged(of_node)
        copies = 2 if has_twins(cluster) else 1
        pinned = min(cluster.gpus, cluster.gpus_per_node) * of_element.host_copy(of_rank)
        return cls(
            files=copies * (COPIES_AT_ONCE * changed + unchanged),
            first=copies * (changed + unchanged),
            buffers=_HOST_COPIES * pinned + (copies - 1) * (changed + unchanged),
            sent=(copies - 1) * changed,
        )


def _share(total: ElementCount, parts: int) -> ElementCount:
    """Return an even share of the elements, rounded up."""
    return ElementCount(*(-(-one // parts) for one in total))
