"""The checkpoint with the lowest loss on held-out data: found, kept by rotation, and exported."""

from pathlib import Path

import pytest

from devices import one_rank
from helpers import refused, unopened
from hydraulis.cli.commands import export as command
from hydraulis.cli.main import main
from hydraulis.runtime.checkpoint.best import best_checkpoint, best_of_run
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.records.evaluation import Evaluation
from runtime.checkpoint.checkpoint_workers import make_saver, make_shard
from runtime.checkpoint.test_folder import make, names


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    (tmp_path / "run").mkdir()
    return CheckpointFolder.of_run(tmp_path / "run")


def evaluate(folder: CheckpointFolder, losses: dict[int, float], more: str = "") -> None:
    lines = [Evaluation(step, loss, "ab").to_json() for step, loss in losses.items()]
    text = "".join(f"{line}\n" for line in lines)
    (folder.path.parent / "evaluations.jsonl").write_text(text + more)


def test_the_best_checkpoint_has_the_lowest_loss_and_is_the_newest_of_equals(
    folder: CheckpointFolder,
) -> None:
    make(folder, 5, 10, 15, 20, 25, torn=25)
    assert best_checkpoint(folder) is None
    # Steps 7 and 25 have no complete checkpoint.
    evaluate(folder, {5: 3.0, 7: 0.5, 10: 2.0, 15: 2.0, 20: 2.5, 25: 1.0})
    assert best_checkpoint(folder) == folder.step(15)


def test_evaluations_that_may_not_be_read_are_named(folder: CheckpointFolder) -> None:
    make(folder, 5)
    evaluate(folder, {5: 3.0})
    path = folder.path.parent / "evaluations.jsonl"
    with unopened(path), refused("file_unreadable", path, "Permission denied"):
        best_of_run(folder.path.parent)


def test_unreadable_and_infinite_losses_do_not_count(folder: CheckpointFolder) -> None:
    make(folder, 5, 10, 15)
    evaluate(folder, {5: 3.0, 10: float("nan"), 15: 4.0}, '{"step": 15, "lo')
    assert best_checkpoint(folder) == folder.step(5)
    # A repeated step has its last loss.
    evaluate(folder, {5: 3.0, 15: 4.0, 10: 3.5}, '{"step": 5, "loss": 3.7, "data": "ab"}\n')
    assert best_checkpoint(folder) == folder.step(10)


def test_only_losses_on_the_newest_data_are_compared(folder: CheckpointFolder) -> None:
    make(folder, 5, 10, 15)
    other = "".join(f"{Evaluation(step, loss, 'cd').to_json()}\n" for step, loss in ((10, 3.0), (15, 3.5)))
    evaluate(folder, {5: 1.0}, other)
    assert best_checkpoint(folder) == folder.step(10)


def test_rotation_keeps_the_best_too(folder: CheckpointFolder) -> None:
    make(folder, 5, 10, 15, 20)
    folder.rotate(2, folder.step(5))
    assert names(folder) == ["step-00000005", "step-00000015", "step-00000020"]
    folder.rotate(1, folder.step(20))
    assert names(folder) == ["step-00000020"]


@pytest.mark.parametrize(("keep_best", "kept"), [(True, [2, 4]), (False, [4])])
def test_a_run_keeps_its_best_checkpoint_on_request(
    folder: CheckpointFolder, *, keep_best: bool, kept: list[int]
) -> None:
    losses: dict[int, float] = {}
    with one_rank("cpu"):
        saver = make_saver(folder.path, make_shard(), every_steps=1, keep=1, keep_best=keep_best)
        for step, loss in enumerate((4.0, 2.0, 3.0, 2.5), start=1):
            losses[step] = loss
            evaluate(folder, losses)
            saver.after(step)
        saver.close(4)
    assert folder.complete() == [folder.step(step) for step in kept]


def test_a_run_without_an_evaluated_checkpoint_has_no_best(folder: CheckpointFolder) -> None:
    run = folder.path.parent
    with refused("checkpoint_missing", run):
        best_of_run(run)
    make(folder, 5)
    with refused("checkpoint_missing", "--best", "train.evaluate_every"):
        best_of_run(run)


def test_the_best_is_exported(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(folder, 5, 10)
    evaluate(folder, {5: 1.0, 10: 2.0})
    chosen: list[Path] = []
    exported = "hydraulis.runtime.hugging_face.export.export"
    monkeypatch.setattr(exported, lambda checkpoint, *_, **__: chosen.append(checkpoint))
    monkeypatch.setattr(command, "check_output", lambda _: None)
    run = str(folder.path.parent)
    for more in ([], ["--best"]):
        assert main(["export", run, "--output", f"{run}/model", *more]) == 0, capsys.readouterr()
    assert chosen == [folder.step(10), folder.step(5)]
