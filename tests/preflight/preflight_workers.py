"""Functions that tests of preflight run on ranks."""

from collections.abc import Sequence

from hydraulis import Scheme
from hydraulis.config.run import RunConfig
from hydraulis.data.sampling.run_length import RunLength, with_steps
from hydraulis.runtime.worker import Worker


def count_bytes(config: RunConfig, schemes: Sequence[str]) -> dict[str, int]:
    """Return the bytes that a worker allocates, after its optimizer's first step."""
    train = with_steps(config, RunLength(1, 1, 0, 0, 0)).train
    worker = Worker(config.model, config.optimizer, train, schemes=[Scheme(one) for one in schemes])
    worker.home.step()
    home = [flat for share in worker.shares for flat in (*share.buffers().values(), share.gradient)]
    buffers = [flat for part in worker.all_buffers for flat in (part.parameter, part.gradient)]
    return {
        "home": sum(flat.nbytes for flat in home),
        "buffers": sum(flat.nbytes for flat in buffers),
    }
