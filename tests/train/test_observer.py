"""The position of a run that stopped or failed."""

from pathlib import Path

import pytest

from hydraulis.train.observer import RunProgress

CHECKPOINT = Path("my runs/demo/checkpoints/step-00000070")
RESUME = f"checkpoint: {CHECKPOINT}; to resume: the same command with --resume 'my runs/demo'"


def progress(checkpoint: Path | None, every: int | None = None) -> RunProgress:
    return RunProgress(completed=70, num_steps=86, checkpoint=checkpoint, checkpoint_every=every)


def test_a_stopped_run_names_its_step_and_how_it_is_resumed() -> None:
    assert progress(CHECKPOINT).after_stop() == f"stopped after step 70 of 86; {RESUME}"
    assert progress(None).after_stop() == "stopped after step 70 of 86; this run trained no step"


@pytest.mark.parametrize("every", [None, 5])
def test_a_failed_run_names_its_newest_checkpoint(every: int | None) -> None:
    assert progress(CHECKPOINT, every).after_failure() == f"failed after step 70 of 86; newest {RESUME}"


@pytest.mark.parametrize(("every", "setting"), [(None, "checkpoint.every_steps"), (5, "every_steps = 5")])
def test_a_failed_run_without_a_checkpoint_names_the_setting(every: int | None, setting: str) -> None:
    text = progress(None, every).after_failure()
    assert text.startswith("failed after step 70 of 86; no checkpoint is complete: ")
    assert setting in text
