"""Functions that tests of preflight run on ranks."""

from collections.abc import Sequence

from hydraulis import Scheme
from hydraulis.config.run import RunConfig
from hydraulis.data.sampling.run_length import RunLength, with_steps
from hydraulis.runtime.worker import Worker


def count_bytes(config: RunConfig, schemes: Sequence[str]) -> dict[str, int]:
    """Return the most bytes that a worker holds, after its optimizer's first step."""
    train = with_steps(config, RunLength(1, 1, 0, 0, 0)).train
    worker = Worker(config.model, config.optimizer, train, schemes=[Scheme(one) for one in schemes])
    worker.optimizer_shard.step(0.0)
    shard = worker.optimizer_shard
    optimizer = [shard.gradient, *(buffer.flat for buffer in shard.buffers().values())]
    local = []
    for scheme in worker.schemes:
        worker.fit_local_shard_alone(scheme)
        held = (worker.local_shard.parameter, worker.local_shard.gradient)
        local.append(sum(flat.untyped_storage().nbytes() for flat in held))
    return {"optimizer": sum(flat.nbytes for flat in optimizer), "local": max(local)}
