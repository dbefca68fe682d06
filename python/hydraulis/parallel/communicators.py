"""Communicators of NCCL: their channels, the device memory of their connections, and their kernels in flight.

A kernel of NCCL runs a thread block on each channel, in effect a multiprocessor each while it waits for other
ranks. The kernels that can wait at once must fit on the device together, since two ranks could otherwise wait
for each other's kernels (NCCL user guide, concurrent use of multiple communicators). The number of channels
also sets the memory of a connection. Both limits are options of each communicator, `max_ctas`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from hydraulis._core import Cluster, Scheme
from hydraulis.config.train import TrainConfig
from hydraulis.errors import InvalidInputError
from hydraulis.parallel.groups import most_groups_of_rank
from hydraulis.parallel.symmetric_memory import ALLOCATED_BYTES
from hydraulis.text.values import MIB

# The environment overrides the option of every communicator (`envConfigOverride` in NCCL's init.cc).
_VARIABLE = "NCCL_MAX_CTAS"
# Device memory of a channel, from NCCL's sources. A peer of the same node takes 2 MiB to send and 10 MiB to
# receive (`p2pSendSetup`, `p2pRecvSetup` in transport/p2p.cc: buffers of three protocols, rounded up).
_LOCAL_PEER = 12 * MIB
# All peers of other nodes together take 16 steps of 128 KiB in each direction (`sharedNetBuffersInit` in
# transport/net.cc).
_REMOTE_PEERS = 4 * MIB
# The ring of collectives has buffers of its own: 2 x 4.7 MiB (LL128) and 2 x 4 MiB (Simple), or one local
# peer.
_RING = 18 * MIB
# Share of the device's multiprocessors on which kernels may wait: 96 of an H100's 132. The rest computes.
_SHARE = 8 / 11


@dataclass(frozen=True, slots=True)
class Channels:
    """Most channels of the communicators of each kind.

    Attributes:
        exchange: Channels of the groups in which buckets are exchanged.
        stage: Channels of tensor groups and of context groups, and of messages between stages.
        has_buffers: Whether tensor groups of a node have symmetric buffers (`ProcessGroups.share_memory`).
    """

    exchange: int = 8
    stage: int = 16
    has_buffers: bool = False

    @classmethod
    def of_run(cls, train: TrainConfig) -> "Channels":
        """Return the channels of a run, with the environment's limit in place of the configuration's."""
        limit = os.environ.get(_VARIABLE, "")
        if limit.isdecimal() and int(limit) > 0:
            return cls(int(limit), int(limit), train.symmetric_memory)
        return cls(train.exchange_channels, train.stage_channels, train.symmetric_memory)


def nccl_options(
    channels: int, timeout: timedelta, *, has_priority: bool = False
) -> "dist.ProcessGroupNCCL.Options":
    """Return the options of one new communicator; torch writes into them, so each needs its own.

    Args:
        channels: Most channels.
        timeout: Timeout of its collectives.
        has_priority: Whether its kernels run on a high-priority stream.
    """
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=has_priority)
    options.config.max_ctas = channels
    # Torch sets the same timeout anyway, and warns if that changes the option.
    options._timeout = timeout
    return options


def communicator_bytes(
    schemes: Sequence[Scheme], cluster: Cluster, channels: Channels, *, later: bool = False
) -> int:
    """Return the most device memory in bytes of one rank's NCCL connections and symmetric buffers over a run.

    The communicators are those of the exchanges inside the node and between nodes, one tensor group for each
    degree and possible position, one context group likewise, and WORLD with the neighbouring stages and with
    the ring of the step's sums.

    Args:
        schemes: Every scheme that a plan of the run may use.
        cluster: All ranks.
        channels: Channels of the communicators.
        later: Whether to leave out the communicators that a measurement of all schemes connects: the
            exchanges, WORLD, and one position of each tensor and context group.
    """
    ranks, node = cluster.gpus, min(cluster.gpus, cluster.gpus_per_node)
    if ranks == 1:
        return 0

    def positions(width: int) -> int:
        return most_groups_of_rank([(1, width)], ranks, node) - later

    exchange = _connections(node - 1) + (_connections(0, is_remote=True) if ranks > node else 0)
    stage = 0
    for tp in {scheme.tp for scheme in schemes if scheme.tp > 1}:
        stage += positions(tp) * (_connections(min(tp, node) - 1, is_remote=tp > node) + _RING)
    for tp, cp in {(scheme.tp, scheme.cp) for scheme in schemes if scheme.cp > 1}:
        local = min(cp, max(1, node // tp))
        stage += positions(tp * cp) * _connections(local - 1, is_remote=local < cp)
    widths = {scheme.tp * scheme.cp for scheme in schemes if scheme.pp > 1}
    # A stage has a neighbour before it and one after it.
    neighbours = 2 * sum(width < node for width in widths)
    if later:
        return (stage + _connections(neighbours, is_remote=ranks > node)) * channels.stage
    stage += _connections(neighbours, is_remote=ranks > node) + _RING
    buffered = {scheme.tp for scheme in schemes if scheme.tp > 1 and node % scheme.tp == 0}
    buffers = len(buffered) * ALLOCATED_BYTES if channels.has_buffers else 0
    return exchange * channels.exchange + stage * channels.stage + buffers


def check_kernels_in_flight(
    schemes: Sequence[Scheme], cluster: Cluster, channels: Channels, device: torch.device
) -> None:
    """Refuse channels with which the kernels that can wait at once leave the device too little room.

    These are an exchange inside the node, one between nodes, a collective of the tensor group, one of the
    context group, and a message between stages.

    Args:
        schemes: Every scheme that a plan of the run may use.
        cluster: All ranks.
        channels: Channels of the communicators.
        device: CUDA device of this rank.

    Raises:
        InvalidInputError: The kernels' channels are more than 8/11 of the device's multiprocessors (code
            `config_value`).
    """
    exchanges = 2 if cluster.gpus > cluster.gpus_per_node else 1
    stages = sum(any(degree > 1 for degree in degrees) for degrees in _degrees(schemes))
    waiting = exchanges * channels.exchange + stages * channels.stage
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    limit = int(multiprocessors * _SHARE)
    if waiting > limit:
        message = (
            f"train.exchange_channels = {channels.exchange} and train.stage_channels = {channels.stage}: "
            f"NCCL kernels that wait at once can take {exchanges} x {channels.exchange} + {stages} x "
            f"{channels.stage} = {waiting} multiprocessors, and {limit} of this device's {multiprocessors} "
            f"may wait; lower the channels, and {_VARIABLE} if the environment sets it"
        )
        raise InvalidInputError(message, code="config_value")


def _degrees(schemes: Sequence[Scheme]) -> tuple[list[int], list[int], list[int]]:
    return [one.tp for one in schemes], [one.cp for one in schemes], [one.pp for one in schemes]


def _connections(local_peers: int, *, is_remote: bool = False) -> int:
    """Return the bytes of one channel that is connected to peers of this node, and to other nodes."""
    return local_peers * _LOCAL_PEER + is_remote * _REMOTE_PEERS
