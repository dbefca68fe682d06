"""The recorded values that a resumed run's jumps are measured by."""

import json
from pathlib import Path

from hydraulis.runtime.jumps import WINDOW
from hydraulis.train.jump_history import read_values


def line(step: int) -> str:
    return json.dumps({"step": step, "loss": step / 2, "gradient_norm": step / 4}) + "\n"


def test_the_last_steps_up_to_the_resumed_one_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(map(line, range(1, 51))))
    losses, norms = read_values(path, 45)
    steps = range(46 - WINDOW, 46)
    assert losses == [step / 2 for step in steps]
    assert norms == [step / 4 for step in steps]


def test_damaged_lines_and_a_missing_file_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_values(path, 3) == ([], [])
    damaged = [b"\0\0\n", b"{\n", b"[]\n", b'{"step": 2}\n', b"\xff\n", line(3).encode(), b'{"step": 4, "lo']
    path.write_bytes(line(1).encode() + b"".join(damaged))
    assert read_values(path, 9) == ([0.5, 1.5], [0.25, 0.75])
