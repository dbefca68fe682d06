"""What the ranks of test_slow_rank.py do: both ways, with floating-point operations in place of time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from benches.loading import load_script
from hydraulis import CostProfile
from hydraulis.runtime.pipeline.timers import StepTimes
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.tiny import made_up_corpus

OPTIONS = "--steps 10 --slow-from 3 --tokens 300 --longest 64 --hidden 16"
# A rank's step has at least 10,000 of these units, and counts as long enough for a measurement.
OPERATIONS_PER_MS = 100.0


def compared(strategy: str) -> Any:
    bench = load_script("slow_rank")
    options = [*OPTIONS.split(), "--strategy", strategy]
    result = bench.compare(bench.parser().parse_args(options), made_up_corpus(256), profile_of, count)
    return None if result is None else (tuple(result), result.known_from(), result.ratio())


def profile_of(_: Worker) -> CostProfile:
    """Give a profile by tokens alone, which the counted operations nearly follow."""
    document = json.loads(made_up_profile({"<1>": 64, "<pp2>": 64}).to_json())
    for entry in document["schemes"]:
        entry |= {"quadratic_ms_per_token2": 0.0, "fixed_ms": 1e-6}
    # The first stage has three layers of 2,832 parameters in matrices, the last one a layer and a head
    # of 4,096.
    document["schemes"][1]["stage_multipliers"] = [2 * 8_496 / 15_424, 2 * 6_928 / 15_424]
    return CostProfile.from_json(json.dumps(document))


def count(worker: Worker) -> None:
    """Let the worker's timers count operations, and leave memory uncounted."""
    counted: list[float] = []

    @contextmanager
    def computing() -> Iterator[None]:
        with FlopCounterMode(display=False) as operations:
            yield
        counted.append(operations.get_total_flops() / OPERATIONS_PER_MS)

    def read() -> StepTimes:
        times = StepTimes(counted.copy(), 0.0)
        counted.clear()
        return times

    def start(*_: object) -> None:
        return None

    setattr(worker.timers, "computing", computing)  # noqa: B010
    setattr(worker.timers, "read", read)  # noqa: B010
    setattr(worker.memory, "start", start)  # noqa: B010
