"""The position of a run that stopped or failed."""

from pathlib import Path

import pytest

from helpers import lacks
from hydraulis.train.observer import RunProgress

CHECKPOINT = Path("my runs/demo/checkpoints/step-00000070")
RESUME = (CHECKPOINT, "--resume 'my runs/demo'")


def progress(checkpoint: Path | None, every: int | None = None, copies: str = "") -> RunProgress:
    return RunProgress(
        completed=70,
        num_steps=86,
        checkpoint=checkpoint,
        checkpoint_every=every,
        run=Path("my runs/demo"),
        copies=copies,
    )


def test_a_stopped_run_names_its_step_and_how_it_is_resumed() -> None:
    assert lacks(progress(CHECKPOINT).after_stop(), "step 70 of 86", *RESUME) == []
    without = progress(None).after_stop()
    assert lacks(without, "step 70 of 86") == []
    assert "--resume" not in without


@pytest.mark.parametrize("every", [None, 5])
def test_a_failed_run_names_its_newest_checkpoint(every: int | None) -> None:
    assert lacks(progress(CHECKPOINT, every).after_failure(), "step 70 of 86", *RESUME) == []


@pytest.mark.parametrize("checkpoint", [None, CHECKPOINT])
def test_a_failed_run_names_its_copies_before_its_checkpoint(checkpoint: Path | None) -> None:
    text = progress(checkpoint, 5, "/dev/shm").after_failure()
    assert lacks(text, "step 70 of 86", "/dev/shm on the nodes", "--resume 'my runs/demo'") == []
    # Copies end with their nodes' memory.
    assert (str(CHECKPOINT) if checkpoint else "no checkpoint is complete") in text


@pytest.mark.parametrize(("every", "setting"), [(None, "checkpoint.every_steps"), (5, "every_steps = 5")])
def test_a_failed_run_without_a_checkpoint_names_the_setting(every: int | None, setting: str) -> None:
    text = progress(None, every).after_failure()
    assert lacks(text, "step 70 of 86", setting) == []
    assert "--resume" not in text
