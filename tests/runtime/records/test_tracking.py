"""TensorBoard and Weights & Biases are told what metrics.jsonl holds; what they wrote is read back."""

import dataclasses
import errno
import importlib
import json
import struct
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers import at_least, file_sizes_below, refused
from hydraulis.config.output import OutputConfig
from hydraulis.config.run import RunConfig
from hydraulis.runtime.records.run_directory import RunDirectory
from hydraulis.runtime.records.tracking import open_trackers, require_trackers
from runtime.records.test_metrics import made_up_metrics
from runtime.tiny import run_config

STEPS = 3


def config(**output: Any) -> RunConfig:
    made = run_config(STEPS, ["1x<1>"])
    return dataclasses.replace(made, output=OutputConfig(directory="nowhere", **output))


def write(made: RunConfig, folder: Path, first: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    trackers = open_trackers(made, RunDirectory(folder), first)
    assert len(trackers) == 1
    for tracker in trackers:
        for step in range(first, STEPS):
            tracker.log(step + 1, made_up_metrics(step, loss=float(9 - step), mfu=0.5).tracked())
        tracker.log(STEPS, {"evaluation/loss": 4.5})
        tracker.close()


def test_services_are_used_on_request_only(tmp_path: Path) -> None:
    require_trackers(config().output)
    assert open_trackers(config(), RunDirectory(tmp_path), 0) == []
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_shows_every_value_and_none_of_repeated_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(config(tensorboard=True), tmp_path / "run")
    write(config(tensorboard=True), tmp_path / "run", first=1)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    numbers = [
        name for name, value in made_up_metrics(mfu=0.5).tracked().items() if not isinstance(value, str)
    ]
    assert set(events.Tags()["scalars"]) == {*at_least(15, numbers), "evaluation/loss"}
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == [(1, 9.0), (2, 8.0), (3, 7.0)]
    assert [(one.step, one.value) for one in events.Scalars("evaluation/loss")] == [(3, 4.5)]
    texts = [one.tensor_proto.string_val[0] for one in events.Tensors("plan/strategy/text_summary")]
    assert set(texts) == {b"1x<tp2>+2x<1>"}


def wandb_records(path: Path) -> Iterator[Any]:
    """Read a file of an offline run: a log of LevelDB's kind behind seven bytes, of records in protobuf."""
    protocol: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    content = path.read_bytes()
    assert content[:4] in (b":W&B", b"")
    assert len(content) < 1 << 15, "more than a block, whose records may be cut"
    place = 7
    while place + 7 <= len(content):
        size, kind = struct.unpack_from("<HB", content, place + 4)
        if place + 7 + size > len(content):
            return
        assert kind == 1
        record = protocol.Record()
        record.ParseFromString(content[place + 7 : place + 7 + size])
        yield record
        place += 7 + size


def history(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    rows = [one.history.item for one in wandb_records(path) if one.WhichOneof("record_type") == "history"]
    return [{_name(item): json.loads(item.value_json) for item in row} for row in rows]


def _name(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def test_weights_and_biases_has_every_value_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    # What the machine does meanwhile would be logged too.
    monkeypatch.setenv("WANDB__DISABLE_STATS", "true")
    # Its own logs lie there.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(config(wandb_project="hydraulis-test"), tmp_path / "run")
    # The library's own process writes; it may be a little behind.
    deadline = time.monotonic() + 60
    while len(found := history(tmp_path / "run")) < STEPS and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [row["_step"] for row in found] == [1, 2, 3]
    for step, row in enumerate(found):
        for name, value in made_up_metrics(step, loss=float(9 - step), mfu=0.5).tracked().items():
            assert row[name] == value, name
    assert found[-1]["evaluation/loss"] == 4.5
    # A run that goes on bears the same name.
    identity = (tmp_path / "run" / "wandb-id.txt").read_text().strip()
    assert list((tmp_path / "run" / "wandb").glob(f"offline-run-*-{identity}")) != []


def test_a_refusal_of_weights_and_biases_names_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def refuse(**_: object) -> None:
        message = "no API key configured"
        raise wandb.Error(message)

    monkeypatch.setattr(wandb, "init", refuse)
    with refused("tracker_unavailable", "API key"):
        open_trackers(config(wandb_project="p"), RunDirectory(tmp_path), 0)


class FullDisk:
    """Fails as the library's writer does, whose own thread the disk refuses."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def add_scalar(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_reported_with_the_folder_of_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", FullDisk)
    (tracker,) = open_trackers(config(tensorboard=True), RunDirectory(tmp_path), 0)
    for attempt in (partial(tracker.log, 1, {"train/loss": 1.0}), tracker.close):
        with refused("file_unwritable", "tensorboard", "No space"):
            attempt()


def test_the_name_of_a_run_is_written_whole_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    given: list[str] = []
    monkeypatch.setattr(wandb, "init", lambda **settings: given.append(settings["id"]))
    with file_sizes_below(4), refused("file_unwritable", "wandb-id.txt"):
        open_trackers(config(wandb_project="p"), RunDirectory(tmp_path), 0)
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        open_trackers(config(wandb_project="p"), RunDirectory(tmp_path), 0)
    assert len(set(given)) == 1
    assert len(given[0]) == 12
    # A crash left no name.
    (tmp_path / "wandb-id.txt").write_bytes(b"\0" * 13)
    for _ in range(2):
        open_trackers(config(wandb_project="p"), RunDirectory(tmp_path), 0)
    assert len(given[2]) == 12
    assert given[3] == given[2] != given[0]


@pytest.mark.parametrize(
    ("output", "library"), [({"tensorboard": True}, "tensorboard"), ({"wandb_project": "p"}, "wandb")]
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    output: dict[str, Any], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    wanted = config(**output)
    for attempt in (
        lambda: require_trackers(wanted.output),
        lambda: open_trackers(wanted, RunDirectory(tmp_path), 0),
    ):
        with refused("extra_missing", library, "hydraulis[track]"):
            attempt()
