"""What a rank holds, whatever it computes, and what a scheme adds to that, measured on the ranks at hand."""

import math

import torch
import torch.distributed as dist

from hydraulis.profile.bench import KeptBytes, SchemeBench
from hydraulis.profile.document import MemoryMeasurement, ModelMemory
from hydraulis.runtime.state.optimizer_shard import num_home_buffers
from hydraulis.runtime.worker import Worker

# Activation bytes are linear in tokens, so two sizes tell: this one and twice it.
MEMORY_TOKENS = 512


def model_memory(worker: Worker, memory_bytes: int) -> ModelMemory:
    """Count what a rank holds beside its strategy's buffers, of the bytes that it may use."""
    home = sum(
        num_home_buffers(share.parameters) * share.parameters.num_elements * share.master.itemsize
        for share in worker.shares
    )
    return ModelMemory(
        memory_bytes=memory_bytes,
        # Set aside at once, for the most that any strategy stages.
        reserved_bytes=sum(room.nbytes for room in worker.staging),
        home_bytes=home,
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
