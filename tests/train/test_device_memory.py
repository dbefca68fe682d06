"""A run on a device with fakes: the warning of fragmentation, and the error of a full device."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from devices import one_rank
from hydraulis import Scheme
from hydraulis.errors import HydraulisError
from hydraulis.profile import run_profile
from hydraulis.runtime import build, loop
from hydraulis.runtime.agreement.step_sum import Votes
from hydraulis.runtime.memory import out_of_memory
from hydraulis.runtime.memory.device_memory import FRAGMENTED, DeviceMemory
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.text.values import MIB
from hydraulis.train import trainer
from hydraulis.train.slow_links import SlowLinks
from hydraulis.train.trainer import Trainer
from runtime.loop_workers import make
from runtime.tiny import made_up_corpus, planner_for, run_config
from train.events import RecordedEvents

STRATEGIES = ("1x<1>",)


def iteration(step: int) -> Any:
    return SimpleNamespace(
        metrics=SimpleNamespace(step=step), num_dropped=0, result=SimpleNamespace(jump=None), group=None
    )


def fake_trainer(device: str, counts: list[int], monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Make a trainer whose steps do nothing but count the votes of all ranks."""
    one_node = SimpleNamespace(between_nodes=None)
    worker: Any = SimpleNamespace(
        device=torch.device(device), votes=Votes(), redistribution=one_node, memory=object()
    )

    def iterations(*_: object) -> Iterator[Any]:
        for step, count in enumerate(counts, 1):
            asked = worker.votes.cast()
            worker.votes.take([count] * len(asked))
            yield iteration(step)

    monkeypatch.setattr(trainer, "iterations", iterations)
    monkeypatch.setattr(
        trainer,
        "FragmentationCheck",
        lambda *asked: SimpleNamespace(is_fragmented=lambda: asked == (worker.device, worker.memory)),
    )
    for name in ("_record", "_evaluate", "_sample"):
        monkeypatch.setattr(Trainer, name, lambda *_: None)
    train = SimpleNamespace(profile_steps=(), step_timeout_s=None)
    config = SimpleNamespace(train=train, checkpoint=SimpleNamespace(timeout_s=None))
    none: Any = None
    run: Any = SimpleNamespace(config=config, data=SimpleNamespace(train=None), completed=0)
    run.position = SimpleNamespace(group=None)
    saver: Any = SimpleNamespace(after=lambda _: None)
    names = ("planner", "evaluator", "text_sampler", "recorder", "keeper", "stop", "hosts")
    parts = dict.fromkeys(names, none)
    events = Events()
    parts["slow_links"] = SlowLinks(worker, none, (), events)
    return Trainer(run=run, worker=worker, saver=saver, observer=events, completed=0, **parts)


class Events(RecordedEvents):
    """Keeps the messages with the steps before them."""

    def step(self, metrics: Any) -> None:
        self.messages.append(f"step {metrics.step}")


def messages(one: Trainer) -> list[str]:
    with one_rank("cpu"):
        one.train()
    assert isinstance(one.observer, Events)
    return one.observer.messages


def test_a_run_warns_once_after_the_first_step_with_a_fragmented_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = fake_trainer("cuda", [0, 3, 5], monkeypatch)
    first, second, warning, third = messages(one)
    assert (first, second, third) == ("step 1", "step 2", "step 3")
    assert "on 3 ranks" in warning
    # The question stands for all steps, and asks this rank's device.
    assert one.worker.votes.cast() == [True]
    assert one.worker.votes.count(FRAGMENTED) == 5


@pytest.mark.parametrize(("device", "counts"), [("cuda", [0, 0]), ("cpu", [2, 2])])
def test_without_fragmentation_and_on_the_cpu_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, device: str, counts: list[int]
) -> None:
    assert messages(fake_trainer(device, counts, monkeypatch)) == ["step 1", "step 2"]


def full(*_: object, **__: object) -> Any:
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"
    raise torch.OutOfMemoryError(message)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the memory of a device that there is not."""
    sizes = (size * MIB for size in (80_000, 3_000, 70_000, 66_000, 70_000, 69_000))
    monkeypatch.setattr(out_of_memory, "DeviceMemory", SimpleNamespace(read=lambda _: DeviceMemory(*sizes)))


@pytest.mark.usefixtures("memory")
def test_a_step_without_memory_ends_the_loop_by_the_named_error_with_the_planned_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "train_step", full)
    config, planner = run_config(2, STRATEGIES), planner_for(1, STRATEGIES)
    monkeypatch.setattr(loop, "planned_bytes", lambda *_: (68_000 * MIB,))
    with one_rank("cpu"), StopRequest() as stop:
        steps = loop.iterations(config, made_up_corpus(256, longest=32), make(config), planner, stop)
        with pytest.raises(HydraulisError) as caught:
            next(steps)
    assert caught.value.code == "out_of_device_memory"
    # The other ranks know nothing of it.
    assert not caught.value.is_everywhere
    for part in ("rank 0 ran out", "asked for 2,048 MiB", "68,000 MiB were planned", "by at least 2,048"):
        assert part in str(caught.value)


@pytest.mark.usefixtures("memory")
def test_an_evaluation_without_memory_is_named_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Trainer._evaluate
    one = fake_trainer("cuda", [0], monkeypatch)
    one.worker.persistent, one.worker.communicator_bytes = [], 0  # type: ignore[misc]
    one.evaluator = SimpleNamespace(after=full)  # type: ignore[assignment]
    monkeypatch.setattr(Trainer, "_evaluate", evaluate)
    with pytest.raises(HydraulisError) as caught:
        messages(one)
    assert caught.value.code == "out_of_device_memory"
    assert "were planned" not in str(caught.value)


@pytest.mark.usefixtures("memory")
def test_a_worker_without_memory_is_named_before_there_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "Worker", full)
    with one_rank("cpu"), pytest.raises(HydraulisError) as caught:
        build.build_worker(run_config(2, STRATEGIES), [Scheme("<1>")], None)
    assert caught.value.code == "out_of_device_memory"
    assert "2,048 MiB for parameters" in str(caught.value)


@pytest.mark.usefixtures("memory")
def test_a_measurement_without_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_profile, "measure_profile", full)
    config = run_config(2, STRATEGIES)
    limits = run_profile.measurement_limits(config)
    with one_rank("cpu"):
        worker = make(config)
        with pytest.raises(HydraulisError) as caught:
            run_profile.measured_profile(worker, worker.schemes, limits, lambda _: None, lambda: False)
    assert caught.value.code == "out_of_device_memory"
    assert "planner.memory_mib by at least 2,048" in str(caught.value)
