"""The folder of a run whose ranks were started again."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from helpers import refused
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.manifest import MANIFEST
from hydraulis.runtime.ranks import host
from hydraulis.runtime.records.run_directory import MEMORY
from hydraulis.train import restarted_run
from hydraulis.train.restarted_run import _run_to_resume, folder_to_resume, remember_run
from ranks import run_ranks
from runtime.tiny import run_config
from train.events import RecordedEvents
from train.restarted_workers import restarts, wait_for_locks

AGAIN = "the ranks were started again"
Resume = Callable[[str], tuple[str, list[str]]]


def continuing(run: Path) -> str:
    return f"{AGAIN}: continuing {run} from its newest checkpoint"


@pytest.fixture
def resume(monkeypatch: pytest.MonkeyPatch) -> Resume:
    """Return a function of `checkpoint.resume` that returns the folder to resume and the messages."""
    stores = {"attempt": PrefixStore("attempt", HashStore())}
    monkeypatch.setattr(restarted_run, "_get_default_store", lambda: stores["attempt"])
    monkeypatch.setattr(restarted_run, "from_rank_zero", lambda make: make())
    monkeypatch.setattr(host, "all_reduce", lambda *_: None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")

    def found(wanted: str) -> tuple[str, list[str]]:
        config = run_config(1, ["1x<1>"])
        checkpoint = dataclasses.replace(config.checkpoint, resume=wanted)
        events = RecordedEvents()
        folder = folder_to_resume(dataclasses.replace(config, checkpoint=checkpoint), events)
        # A later attempt has other prefixes in the same store.
        stores["attempt"] = PrefixStore("later", stores["attempt"].underlying_store)
        return folder, events.messages

    return found


def test_the_first_start_resumes_as_configured(resume: Resume) -> None:
    assert [resume(wanted) for wanted in ("", "latest")] == [("", []), ("latest", [])]


@pytest.mark.parametrize("wanted", ["", "latest", "another"])
def test_a_restart_continues_the_run_of_its_job(resume: Resume, tmp_path: Path, wanted: str) -> None:
    remember_run(tmp_path)
    (CheckpointFolder.of_run(tmp_path).begin(2) / MANIFEST).touch()
    for _ in range(2):
        assert resume(wanted) == (str(tmp_path), [continuing(tmp_path)])


def test_a_restart_without_a_checkpoint_is_reported(resume: Resume, tmp_path: Path) -> None:
    remember_run(tmp_path)
    CheckpointFolder.of_run(tmp_path).begin(2)
    said = f"{AGAIN}, and {tmp_path} has no complete checkpoint: "
    assert resume("") == ("", [f"{said}starting a new run"])
    assert resume("latest") == ("latest", [f"{said}resuming latest"])


def test_a_restart_without_a_folder_is_reported(resume: Resume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    folder, (message,) = resume("")
    assert folder == ""
    assert message.startswith(f"{AGAIN}, and the start before had made no folder: ")


@pytest.mark.parametrize("store", ["False", ""])
def test_a_restart_without_a_store_of_the_agent_starts_no_new_run(
    resume: Resume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", store)
    folder, (message,) = resume("")
    assert folder == ""
    assert message.endswith("ranks that are started again will not find this run; add --resume latest")
    assert resume("latest") == ("latest", [])
    remember_run(tmp_path)
    (CheckpointFolder.of_run(tmp_path).begin(2) / MANIFEST).touch()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    setting = f"TORCHELASTIC_USE_AGENT_STORE = '{store}'"
    with refused("config_value", setting, "checkpoint.resume = ''", "--resume latest"):
        resume("")
    for wanted in ("latest", "another"):
        assert resume(wanted) == (wanted, [f"{AGAIN}: resuming {wanted}"])


def test_a_restart_on_one_node_is_one_of_all_ranks() -> None:
    assert run_ranks(2, restarts) == [[False, True, True]] * 2


def test_a_restart_waits_for_the_lock_and_ends_the_wait_when_it_is_asked_to(tmp_path: Path) -> None:
    freed, asked = f"waiting at most 120 s for the lock of {tmp_path}, which process ", "stopped before"
    for waits in run_ranks(2, wait_for_locks, tmp_path):
        assert [is_started for is_started, _ in waits] == [True, True, False]
        first, (waited,), (waited_too, stopped) = (messages for _, messages in waits)
        assert first == []
        assert waited.startswith(freed)
        assert waited_too.startswith(freed)
        assert stopped.startswith(asked)


def test_without_torchrun_no_run_is_remembered(
    resume: Resume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    remember_run(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    assert resume("") == ("", [])


def test_ranks_of_the_own_launcher_share_a_file(
    resume: Resume, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    with (tmp_path / "shared").open("w+b") as file:
        monkeypatch.setenv("HYDRAULIS_RUN_FILE", str(file.fileno()))
        assert resume("") == ("", [])
        remember_run(tmp_path)
        (CheckpointFolder.of_run(tmp_path).begin(2) / MANIFEST).touch()
        assert resume("") == (str(tmp_path), [continuing(tmp_path)])


def test_copies_are_looked_for_in_the_run_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    config = run_config(1, ["1x<1>"])

    def found(resume: str) -> Path | None:
        return _run_to_resume(
            dataclasses.replace(
                config,
                checkpoint=dataclasses.replace(config.checkpoint, resume=resume),
                output=dataclasses.replace(config.output, directory=str(tmp_path / "run")),
            )
        )

    assert [found(""), found("latest"), found("another")] == [None, None, Path("another")]
    first, second = tmp_path / "run", tmp_path / "run-2"
    (CheckpointFolder.of_run(first).begin(2) / MANIFEST).touch()
    second.mkdir()
    assert found("latest") == first
    # A newer run without a checkpoint has copies.
    (second / MEMORY).write_text("0" * 32)
    assert found("latest") == second
