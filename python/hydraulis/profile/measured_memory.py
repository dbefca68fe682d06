"""What a rank holds, whatever it computes, and what a scheme adds to that, measured on the ranks at hand."""

import math
from collections import Counter

import torch
import torch.distributed as dist

from hydraulis.profile.bench import KeptBytes, SchemeBench
from hydraulis.profile.document import MemoryMeasurement, ModelMemory
from hydraulis.runtime.home import num_home_buffers
from hydraulis.runtime.parameter_arrival import most_overflow
from hydraulis.runtime.worker import Worker

# Activation bytes are linear in tokens, so two sizes tell: this one and twice it.
MEMORY_TOKENS = 512
# Gradients that come in: what this rank adds up of two buckets, from each holder, is at most two buckets,
# what tensor ranks copy counted for each rank of a node, since it may live on one of them.
STAGING_BUFFERS = 2
# On several nodes also four sums that are relayed, and what comes home of two: each of a rail.
RELAY_BUFFERS = 6


def model_memory(worker: Worker, memory_bytes: int) -> ModelMemory:
    """Count what a rank holds beside its strategy's buffers, of the bytes that it may use."""
    cluster = worker.cluster
    is_relayed = cluster.gpus_per_node < cluster.gpus
    widest = max(scheme.tp for scheme in worker.schemes)
    staging = home = overflow = 0
    for share, buffers in zip(worker.shares, worker.all_buffers, strict=True):
        elements: Counter[int] = Counter()
        staged: Counter[int] = Counter()
        for parameter in share.parameters.table.parameters:
            bucket, size = parameter.blocks[0], parameter.rows * parameter.row_elements
            elements[bucket] += size
            copies = cluster.gpus_per_node if parameter.units < widest else 1
            staged[bucket] += size * copies
        relay = share.layout.largest_relay if is_relayed else 0
        staging += STAGING_BUFFERS * max(staged.values()) + RELAY_BUFFERS * relay
        overflow += most_overflow(buffers, max(elements.values()), relay)
        home += num_home_buffers(share.parameters) * elements.total()
    return ModelMemory(
        memory_bytes=memory_bytes,
        reserved_bytes=staging * worker.buffers.gradient.itemsize + overflow,
        home_bytes=home * worker.home.master.itemsize,
    )


def scheme_memory(worker: Worker, bench: SchemeBench) -> MemoryMeasurement:
    """Bring together what the ranks of each stage keep: as much as the fullest of them. Collective."""
    kept = torch.zeros(bench.scheme.pp, len(KeptBytes._fields), dtype=torch.float64)
    if bench.position is not None:
        kept[bench.position.stage] = torch.tensor(bench.kept_bytes(MEMORY_TOKENS), dtype=torch.float64)
    dist.all_reduce(kept, op=dist.ReduceOp.MAX)
    # The buffers are those of the largest stage of all schemes, whichever a rank is in.
    buffers = sum(part.parameter.nbytes + part.gradient.nbytes for part in worker.all_buffers)
    by_stage = [KeptBytes(*of_stage) for of_stage in kept.tolist()]
    homes = [
        [
            num_home_buffers(share.parameters) * share.master.itemsize * elements
            for elements in share.parameters.stage_elements(bench.scheme)
        ]
        for share in worker.shares
    ]
    return MemoryMeasurement(
        held_bytes=[buffers + math.ceil(of_stage.constant) for of_stage in by_stage],
        activation_bytes_per_token=[of_stage.per_token for of_stage in by_stage],
        stage_home_bytes=[sum(of_stage) for of_stage in zip(*homes, strict=True)],
    )
