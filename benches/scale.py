"""Host time of one rank among many: the start of a worker, and a step, without other ranks or a device.

    python benches/scale.py [--ranks N ...] [--sequences-per-rank S] [--steps K]

Rank 0 of a run runs alone on torch's FakeProcessGroup, whose collectives return at once and change nothing,
so all times are those of the rank's own host. The model has the layers of Llama-2 7B and few channels, so
that computing takes no time; the initial values are those of a rank of the whole 7B model. Stand-ins replace
the parts that the fake group lacks: the gathered measurements are the rank's own, once for each rank, digests
and losses are not checked, and groups are made by splits as on NCCL. Times are CPU times, which other
processes of the machine hardly change; those of a step are medians.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from operator import sub
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from hydraulis import Cluster, CostProfile, Plan, Planner, Strategy
from hydraulis._core import OptimizerShards
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.train import TrainConfig
from hydraulis.parallel import groups, splits
from hydraulis.runtime import step as step_module
from hydraulis.runtime import step_checks
from hydraulis.runtime import worker as worker_module
from hydraulis.runtime.loop import frozen_objects
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.rank_zero import from_living_rank_zero
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters
from hydraulis.runtime.step import train_step
from hydraulis.runtime.worker import Worker

T = TypeVar("T")

RANKS_PER_NODE = 8
SEVEN_B = ModelConfig(
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=11_008,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
)
NARROW = replace(SEVEN_B, vocab_size=256, hidden_size=128, intermediate_size=256)
LONGEST = 256


class Figures(NamedTuple):
    """CPU times in ms of one rank among `ranks`; sizes in bytes and elements.

    Attributes:
        ranks: Number of ranks.
        sequences: Sequences of the batch.
        worker_ms: Building the worker.
        groups_ms: Making the groups of the first plan.
        group_calls: Calls that make process groups, by name: of the worker and of the first plan.
        values_ms: Drawing this rank's initial values of the 7B model.
        values: Elements that the rank owns.
        first_step_ms: The first step of a strategy, without `pipeline_ms`.
        step_ms: A later step with the plan at hand, without `pipeline_ms`.
        pipeline_ms: The forwards and backwards of a step, with the transfers that they start.
        prepare_ms: The part of a step before its first transfer.
        gather_ms: The part of a step that collects the measurements of all ranks.
        plan_bytes: The plan's text.
        send_ms: Rank 0's part of sending the plan.
        parse_ms: Another rank's parsing of the plan.
    """

    ranks: int
    sequences: int
    worker_ms: float
    groups_ms: float
    group_calls: dict[str, int]
    values_ms: float
    values: int
    first_step_ms: float
    step_ms: float
    pipeline_ms: float
    prepare_ms: float
    gather_ms: float
    plan_bytes: int
    send_ms: float
    parse_ms: float


def measure(ranks: int, sequences_per_rank: float, steps: int) -> Figures:
    """Measure rank 0 of a run of this size."""
    dist.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=ranks, timeout=timedelta(seconds=60)
    )
    try:
        with _stand_ins(), _counted_groups() as calls:
            return _measured(ranks, round(sequences_per_rank * ranks), steps, calls)
    finally:
        dist.destroy_process_group()


def _measured(ranks: int, sequences: int, steps: int, calls: Counter[str]) -> Figures:
    strategy = f"{ranks // 32}x<tp8>+{ranks // 16}x<tp4>+{ranks // 4}x<tp2>"
    schemes = sorted(set(Strategy(strategy).schemes))
    config = TrainConfig(steps=1, dtype="float32", timeout_s=60.0)
    worker_ms, worker = _timed(lambda: Worker(NARROW, OptimizerConfig(), config, schemes=schemes))
    plan = _plan(ranks, strategy, sequences)
    read = [np.arange(int(length)) % NARROW.vocab_size for length in plan.lengths]
    groups_ms, _ = _timed(lambda: worker.prepare(plan, read.__getitem__))
    prepare: list[float] = []
    measured: list[float] = []
    pipeline: list[float] = []
    with (
        frozen_objects(),
        _timing(worker, "prepare", prepare),
        _timing(worker, "measure", measured),
        _timing(step_module, "run_pipeline", pipeline),
    ):
        whole = [_timed(lambda: train_step(worker, plan, read.__getitem__))[0] for _ in range(steps + 1)]
    values_ms, values = _timed(lambda: _draw(ranks))
    text = plan.to_json()
    return Figures(
        ranks=ranks,
        sequences=sequences,
        worker_ms=worker_ms,
        groups_ms=groups_ms,
        group_calls=dict(calls),
        values_ms=values_ms,
        values=values,
        first_step_ms=whole[0] - pipeline[0],
        step_ms=statistics.median(map(sub, whole[1:], pipeline[1:])),
        pipeline_ms=statistics.median(pipeline[1:]),
        prepare_ms=statistics.median(prepare[1:]),
        gather_ms=statistics.median(measured[1:]),
        plan_bytes=len(text),
        send_ms=statistics.median(_timed(lambda: _sent(plan))[0] for _ in range(steps)),
        parse_ms=statistics.median(_timed(lambda: Plan.from_json(text))[0] for _ in range(steps)),
    )


def _plan(ranks: int, strategy: str, sequences: int) -> Plan:
    """Plan a batch of lognormal lengths, median 100."""
    drawn = np.random.default_rng(0).lognormal(np.log(100.0), 0.7, sequences)
    lengths = drawn.clip(2, LONGEST).astype(np.int64)
    profile = _profile(sorted({str(scheme) for scheme in Strategy(strategy).schemes}))
    cluster = Cluster(gpus=ranks, gpus_per_node=RANKS_PER_NODE)
    return Planner(profile, cluster, strategies=[strategy]).plan(lengths, lengths - 1)


def _profile(schemes: list[str]) -> CostProfile:
    """Make a profile in which a micro-batch of any scheme has at most `2 * LONGEST` tokens."""
    memory, token_bytes = 10_000_000_000, 1000.0
    document = {
        "format": "hydraulis.cost-profile/2",
        "name": "scale",
        "source": "made up for a bench",
        "hardware": {"device": "none", "gpus_per_node": RANKS_PER_NODE, "memory_bytes": memory},
        "memory": {"reserved_bytes": 0, "optimizer_bytes": 0, "token_multiple": 8},
        "schemes": [
            {
                "scheme": scheme,
                "quadratic_ms_per_token2": 1e-4,
                "linear_ms_per_token": 0.05,
                "fixed_ms": 2.0,
                "forward_share": 1 / 3,
                "resident_bytes": memory - round(2 * LONGEST * token_bytes),
                "activation_bytes_per_token": token_bytes,
            }
            for scheme in schemes
        ],
    }
    return CostProfile.from_json(json.dumps(document))


def _draw(ranks: int) -> int:
    """Draw the initial values of rank 0's shard of the 7B model, and return their number."""
    parameters = ModelParameters.from_config(SEVEN_B)
    cluster = Cluster(gpus=ranks, gpus_per_node=RANKS_PER_NODE)
    shards = OptimizerShards(parameters.table, cluster, [])
    source, number = InitialValues(parameters, 0, torch.float32), 0
    for piece in shards.slices(0):
        number += source.read(parameters.names[piece.parameter], piece.start, piece.end).numel()
    return number


def _sent(plan: Plan) -> str:
    """Send a plan as the ranks of a run do."""
    return from_living_rank_zero(lambda _alive: plan.to_json())


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    result = work()
    return 1e3 * (time.process_time() - start), result


@contextmanager
def _timing(owner: object, name: str, into: list[float]) -> Iterator[None]:
    """Time each call of a function of a worker or of a module."""
    call = getattr(owner, name)

    def timed(*args: Any) -> Any:
        ms, result = _timed(lambda: call(*args))
        into.append(ms)
        return result

    with patch.object(owner, name, timed):
        yield


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Give what the fake group does not: the size of a node, and the measurements of the other ranks.

    Parameters that the fake group never sends have any values, so nothing is checked by value.
    """

    def gather(x: torch.Tensor) -> torch.Tensor:
        return x.expand(dist.get_world_size(), *x.shape)

    with ExitStack() as stack:
        cluster = Cluster(gpus=dist.get_world_size(), gpus_per_node=RANKS_PER_NODE)
        stack.enter_context(patch.object(worker_module, "run_cluster", lambda: cluster))
        stack.enter_context(patch.object(host, "gather", gather))
        for check in ("raise_difference", "check_loss", "check_norm"):
            stack.enter_context(patch.object(step_checks, check, lambda *_: None))
        yield


@contextmanager
def _counted_groups() -> Iterator[Counter[str]]:
    """Count the calls that make process groups, with splits as on NCCL, and make this rank's group only."""
    calls: Counter[str] = Counter()
    make = dist.new_group

    def new_group(*args: Any, **options: Any) -> Any:
        calls["new_group"] += 1
        return make(*args, **options | {"backend": "fake"})

    def split_group(*, split_ranks: list[list[int]], timeout: timedelta, **_: Any) -> Any:
        calls["split_group"] += 1
        own = next((ranks for ranks in split_ranks if 0 in ranks), None)
        return None if own is None else make(own, timeout=timeout, backend="fake")

    with ExitStack() as stack:
        stack.enter_context(patch.object(dist, "new_group", new_group))
        stack.enter_context(patch.object(dist, "split_group", split_group))
        for module in (splits, groups):
            stack.enter_context(patch.object(module, "can_split", lambda _: True))
        yield calls


def main() -> None:
    """Print the figures of each number of ranks as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1_024, 16_384], metavar="N")
    parser.add_argument("--sequences-per-rank", type=float, default=4.0, metavar="S")
    parser.add_argument("--steps", type=int, default=5, metavar="K")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for ranks in arguments.ranks:
        figures = measure(ranks, arguments.sequences_per_rank, arguments.steps)
        sys.stdout.write(json.dumps(figures._asdict()) + "\n")


if __name__ == "__main__":
    main()
