"""Functions that test_step.py runs on ranks."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from hydraulis import Plan
from hydraulis.errors import HydraulisError
from hydraulis.runtime.jumps import JumpDetector
from hydraulis.runtime.pipeline.stage import Stage
from hydraulis.runtime.step import train_step
from hydraulis.runtime.worker import Worker
from runtime.tiny import make_worker, plan_for, train_config

STRATEGY = "1x<tp2>+1x<1>"
LENGTHS = [30, 29, 28, 27, 26, 25]


class Refused(NamedTuple):
    """The end of one step on one rank."""

    code: str
    message: str
    is_updated: bool
    steps: int
    jump: str | None


def train_and_differ(cases: Sequence[str]) -> dict[str, Refused]:
    """Train a step in which one rank differs, for each case; then one without a difference."""
    worker = make_worker([STRATEGY])
    found = {case: _step(worker, *_with_difference(case)) for case in cases}
    whole = _step(worker, plan_for(3, STRATEGY, LENGTHS), _read)
    assert whole.is_updated, whole
    return found


def _with_difference(case: str) -> tuple[Plan, Callable[[int], Any]]:
    """Return the plan and the reader of this rank."""
    rank = dist.get_rank()
    plan = plan_for(3, STRATEGY, LENGTHS)
    if case == "plan" and rank == 1:
        # Only a name differs, so that the ranks still exchange the same tensors.
        text = plan.to_json()
        assert '"made-up"' in text
        return Plan.from_json(text.replace('"made-up"', '"other"')), _read
    if case == "tokens" and rank == 1:
        return plan, lambda sequence: (_read(sequence) + 1) % 7
    if case in ("loss", "gradient") and rank == 2:
        _damage(case)
    return plan, _read


def _damage(case: str) -> None:
    """Make this rank's loss or gradient of the next step no number."""
    forward = Stage.forward

    def damaged(*arguments: Any) -> Any:
        setattr(Stage, "forward", forward)  # noqa: B010
        output = forward(*arguments)
        assert output is not None
        if case == "loss":
            return output * torch.nan
        output.register_hook(lambda gradient: gradient * torch.nan)
        return output

    setattr(Stage, "forward", damaged)  # noqa: B010


def skip_and_stop() -> tuple[Refused, Refused]:
    """Train eight equal steps, and then one whose gradient is far larger, with both reactions."""
    found = []
    reactions: tuple[Literal["skip"], Literal["stop"]] = ("skip", "stop")
    for reaction in reactions:
        worker = make_worker(["2x<1>"])
        worker.jumps = JumpDetector(train_config(dtype=torch.float64, on_jump=reaction))
        plan = plan_for(2, "2x<1>", LENGTHS)
        worker.jumps.recall([1e9] * 8, [1e-9] * 8)
        worker.optimizer_shard.optimizer.resume(8)
        found.append(_step(worker, plan, _read))
    return found[0], found[1]


def _step(worker: Worker, plan: Plan, read: Callable[[int], Any]) -> Refused:
    before = worker.optimizer_shard.master.clone()
    code, message, jump = "", "", None
    try:
        jump = train_step(worker, plan, read).jump
    except HydraulisError as error:
        code, message = error.code, str(error)
        jump = None if error.is_everywhere else "only on this rank"
    is_updated = not torch.equal(before, worker.optimizer_shard.master)
    return Refused(code, message, is_updated, worker.optimizer_shard.optimizer.num_steps, jump)


def _read(sequence: int) -> Any:
    return np.arange(LENGTHS[sequence]) % 7
