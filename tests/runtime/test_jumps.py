"""Jumps of the loss and of the gradient norm."""

import dataclasses
import json
import math
from pathlib import Path

from helpers import refused
from hydraulis.config.train import TrainConfig
from hydraulis.runtime.jumps import WINDOW, JumpDetector, recorded_values
from hydraulis.runtime.records.run_directory import METRICS, RunDirectory

CONFIG = TrainConfig(steps=100, loss_jump=2.0, norm_jump=10.0)


def detector(**settings: object) -> JumpDetector:
    made = JumpDetector(dataclasses.replace(CONFIG, **settings))  # type: ignore[arg-type]
    made.recall([3.0] * 8, [1.0] * 8)
    return made


def test_a_value_far_above_the_median_is_a_jump() -> None:
    steady = detector()
    assert steady.find(9, 6.0, 10.0) is None
    assert not steady.skips
    jumped = steady.find(10, 6.1, 0.1)
    assert jumped == "step 10: the loss jumped to 6.1, above 2 times the median 3 of the 9 steps before"
    both = steady.find(11, 7.0, 11.0)
    assert both is not None
    assert "the loss jumped to 7," in both
    assert [
        part for part in ("gradient norm", "11", "10 times", "median 1", "10 steps") if part not in both
    ] == []


def test_too_few_steps_have_no_jump() -> None:
    new = JumpDetector(CONFIG)
    assert [new.find(step, 10.0**step, 10.0**step) for step in range(1, 9)] == [None] * 8
    assert new.find(9, 1e30, 1.0) is not None


def test_a_lasting_change_is_the_new_level() -> None:
    changing = detector()
    found = [changing.find(step, 9.0, 1.0) for step in range(9, 9 + WINDOW)]
    assert found[0] is not None
    assert found[-1] is None


def test_a_factor_of_0_is_no_check() -> None:
    assert detector(loss_jump=0.0, norm_jump=0.0).find(9, 1e30, 1e30) is None


def test_a_jump_skips_the_update_or_stops_the_run() -> None:
    skipping = detector(on_jump="skip")
    assert skipping.skips
    assert str(skipping.find(9, 7.0, 1.0)).endswith("; its update is skipped")
    with refused("training_jumped", "step 9", "loss", 7, "a higher train.loss_jump, ") as refusal:
        detector(on_jump="stop").find(9, 7.0, 1.0)
    with refused("training_jumped", "a higher train.loss_jump and train.norm_jump, "):
        detector(on_jump="stop").find(9, 7.0, 11.0)
    assert refusal.value.is_everywhere


def test_the_same_steps_after_a_resume_have_the_same_jumps() -> None:
    losses = [3 + math.sin(step) for step in range(60)]
    whole = JumpDetector(dataclasses.replace(CONFIG, loss_jump=1.2))
    found = [whole.find(step, loss, 1.0) for step, loss in enumerate(losses)]
    resumed = JumpDetector(dataclasses.replace(CONFIG, loss_jump=1.2))
    resumed.recall(losses[40 - WINDOW : 40], [1.0] * WINDOW)
    assert [resumed.find(step, losses[step], 1.0) for step in range(40, 60)] == found[40:]
    assert any(found[40:])


def line(step: int) -> str:
    return json.dumps({"step": step, "loss": step / 2, "gradient_norm": step / 4}) + "\n"


def test_the_last_steps_up_to_the_resumed_one_are_read(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text("".join(map(line, range(1, 51))))
    losses, norms = recorded_values(RunDirectory(tmp_path), 45)
    steps = range(46 - WINDOW, 46)
    assert losses == [step / 2 for step in steps]
    assert norms == [step / 4 for step in steps]


def test_damaged_lines_and_a_missing_file_are_left_out(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert recorded_values(directory, 3) == ([], [])
    damaged = [b"\0\0\n", b"{\n", b"[]\n", b'{"step": 2}\n', b"\xff\n", line(3).encode(), b'{"step": 4, "lo']
    (tmp_path / METRICS).write_bytes(line(1).encode() + b"".join(damaged))
    assert recorded_values(directory, 9) == ([0.5, 1.5], [0.25, 0.75])
