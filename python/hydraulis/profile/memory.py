"""Measured memory: the bytes of a rank that no scheme changes, and the bytes of each scheme."""

import math

import torch
import torch.distributed as dist

from hydraulis.planner.profile_document import ModelMemory, SchemeMemory
from hydraulis.profile.bench import SavedBytes, SchemeBench
from hydraulis.runtime.memory.device_memory import DeviceMemory, outside_bytes
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.shared_devices import ranks_per_device
from hydraulis.runtime.state.parameters import ElementCount
from hydraulis.runtime.state.state_bytes import StateBytes
from hydraulis.runtime.worker import Worker

# Bytes saved for backward are linear in the tokens, so two sizes determine them: this one and its double.
MEMORY_TOKENS = 512


def model_memory(worker: Worker, memory_bytes: int) -> ModelMemory:
    """Count the bytes that do not depend on the scheme, after the schemes' own. Collective on CUDA.

    Args:
        worker: Worker of this rank.
        memory_bytes: Memory of a rank.
    """
    return ModelMemory(
        memory_bytes=memory_bytes,
        # The staging buffers are allocated once, for the largest exchange of any strategy.
        reserved_bytes=sum(room.nbytes for room in worker.redistribution.staging) + _beyond_tensors(worker),
        optimizer_bytes=_state_bytes(worker).optimizer(worker.parameters.elements),
    )


def _beyond_tensors(worker: Worker) -> int:
    """Return the most bytes of any rank's device that tensors of the plan do not count; 0 on the CPU.

    The temporaries of an update are among them, because a measurement makes no update.
    """
    if worker.device.type != "cuda":
        return 0
    outside = outside_bytes(worker.device, worker.communicator_bytes)
    memory = DeviceMemory.read(worker.device)._replace(outside=outside)
    later = 0 if ranks_per_device(worker.device) > 1 else worker.later_communicator_bytes
    own = memory.beyond(worker.persistent) + worker.optimizer_shard.optimizer.temporary_bytes
    return host.largest(own) + later


def sample_tokens(cap: int, most: int) -> int:
    """Return the smaller of two sizes near a cap: a quarter of it; the larger one leaves room for errors.

    An allocator's peak is nearly linear from some size on only: the loss holds one chunk of logits at a time,
    and a smaller micro-batch has a smaller chunk. Chunks of larger ones differ by less than twice.

    Args:
        cap: Token cap by the bytes of `MEMORY_TOKENS`.
        most: Tokens of the largest possible micro-batch.
    """
    return max(MEMORY_TOKENS, min(cap, most) // 4)


def scheme_memory(worker: Worker, bench: SchemeBench, tokens: int = MEMORY_TOKENS) -> SchemeMemory:
    """Take the maximum of each stage's bytes over its ranks. Collective.

    Args:
        worker: Worker of this rank.
        bench: Bench of the scheme.
        tokens: Tokens of the smaller of two measured micro-batches; the other has twice as many.
    """
    saved = torch.zeros(bench.scheme.pp, len(SavedBytes._fields), dtype=torch.float64)
    if bench.position is not None:
        saved[bench.position.stage] = torch.tensor(bench.saved_bytes(tokens), dtype=torch.float64)
    host.all_reduce(saved, dist.ReduceOp.MAX)
    buffers = worker.local_shard.bytes_of(bench.scheme)
    of_element = _state_bytes(worker)
    # A stage without a backward saves nothing, but its output is there until it is sent.
    output = worker.parameters.config.hidden_size * of_element.narrow / (bench.scheme.tp * bench.scheme.cp)
    by_stage = [SavedBytes(*stage) for stage in saved.tolist()]
    trained, frozen = (
        worker.parameters.stage_elements(bench.scheme, trained=trained) for trained in (True, False)
    )
    return SchemeMemory(
        resident_bytes=[buffers + math.ceil(stage.constant) for stage in by_stage],
        activation_bytes_per_token=[max(stage.per_token, output) for stage in by_stage],
        host_bytes_per_token=(
            [stage.host_per_token for stage in by_stage] if "offload" in bench.scheme.checkpointing else None
        ),
        stage_optimizer_bytes=[
            of_element.optimizer(ElementCount(*counts)) for counts in zip(trained, frozen, strict=True)
        ],
    )


def _state_bytes(worker: Worker) -> StateBytes:
    dtype = worker.local_shard.parameter.dtype
    return StateBytes.of(dtype, len(worker.optimizer_shard.optimizer.moments))
