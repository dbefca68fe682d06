"""What the ranks of test_slow_rank.py do: both ways, with floating-point operations in place of time."""

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from helpers import ROOT
from hydraulis import CostProfile
from hydraulis.runtime.pipeline.timers import StepTimes
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.tiny import made_up_corpus

OPTIONS = "--steps 10 --slow-from 3 --tokens 300 --longest 64 --hidden 16"
# A rank's step has at least 10,000 of these units, and counts as long enough for a measurement.
OPERATIONS_PER_MS = 100.0


def load_bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("slow_rank", ROOT / "benches/slow_rank.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compared() -> Any:
    bench = load_bench()
    result = bench.compare(bench.parser().parse_args(OPTIONS.split()), made_up_corpus(256), profile_of, count)
    return None if result is None else (tuple(result), result.known_from(), result.ratio())


def profile_of(_: Worker) -> CostProfile:
    """Give a profile by tokens alone, which the counted operations nearly follow."""
    document = json.loads(made_up_profile({"<1>": 64}).to_json())
    document["schemes"][0] |= {"quadratic_ms_per_token2": 0.0, "fixed_ms": 1e-6}
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
