"""The checks of the checkpoint to resume from, the output folder, and the experiment trackers."""

from pathlib import Path

from hydraulis.config.run import RunConfig
from hydraulis.data.open import Datasets
from hydraulis.data.sampling.run_length import run_length, with_steps
from hydraulis.data.sources.data_files import list_data_files
from hydraulis.errors import InvalidInputError
from hydraulis.preflight.finding import Status
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.reader import check_shards, read_manifest
from hydraulis.runtime.checkpoint.resume import ResumedRun, newest_of
from hydraulis.runtime.records.output_folder import checked_output
from hydraulis.runtime.records.run_lock import check_unlocked
from hydraulis.runtime.records.tracking import require_trackers
from hydraulis.runtime.recovery.run_start import named_starts
from hydraulis.text.values import mib


class FolderChecks:
    """Checks of the run's folders.

    Attributes:
        config: Configuration of the run.
        resumed: Run to resume, after the check `resume`; None for a new run and for a refused one.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.resumed: ResumedRun | None = None

    @property
    def completed(self) -> int:
        """Number of steps that the resumed run has completed; 0 for a new run."""
        return 0 if self.resumed is None else self.resumed.manifest.step

    def is_resumed(self) -> bool:
        """Whether the run reads its parameters from a checkpoint, or would if that were not refused."""
        resume = self.config.checkpoint.resume
        try:
            return bool(resume) and newest_of(resume, self.config.output.directory) is not None
        except InvalidInputError:
            # The check `resume` reports it.
            return True

    def resume(self, data: Datasets | None) -> tuple[Status, str]:
        """Find the checkpoint to resume from, and compare it with the run.

        Args:
            data: Data of the run; None if they are not indexed yet, and compared later.

        Raises:
            HydraulisError: The checkpoint is missing or incomplete, in use by another training (see
                `check_unlocked`), or of another model or other data (see `ResumedRun.check`).
        """
        resume = self.config.checkpoint.resume
        if not resume:
            return "ok", "a new run"
        try:
            checkpoint = newest_of(resume, self.config.output.directory)
        except InvalidInputError as error:
            copies = self.config.checkpoint.memory_folder
            if error.code != "checkpoint_missing" or not copies or not named_starts(Path(resume)):
                raise
            return "later", f"{resume} has no complete checkpoint: the copies in {copies} on the nodes decide"
        if checkpoint is None:
            return "ok", "a new run: there is no checkpoint yet"
        resumed = ResumedRun(checkpoint.parents[1], checkpoint, read_manifest(checkpoint))
        self.resumed = resumed
        check_unlocked(resumed.run)
        check_shards(checkpoint, resumed.manifest)
        resumed.check_model(self.config)
        files = list_data_files(self.config.data)
        resumed.check_unread(self.config, files)
        if data is None:
            return "later", f"{checkpoint} is complete; its data are compared once they are indexed"
        config = with_steps(self.config, run_length(self.config, data.train))
        resumed.check(config, DataPosition(config, data.train))
        nothing_left = resumed.nothing_left(config.train.num_steps)
        if nothing_left:
            return "warning", nothing_left
        text = f"resumes after step {resumed.manifest.step} of {resumed.run}"
        changed = resumed.changed_settings(config)
        if changed:
            text += f", with other settings: {'; '.join(changed)}"
        changed_files = resumed.describe_changed_files(files)
        return ("warning", f"{text}; {changed_files}") if changed_files else ("ok", text)

    def output(self, data: Datasets | None) -> tuple[Status, str]:
        """Check that the output folder can be written and has room for the checkpoints.

        Args:
            data: Data of the run; None if they are not indexed yet.

        Raises:
            HydraulisError: The folder cannot be written or lacks room (code `file_unwritable`), or the epochs
                are refused (see `run_length`).
        """
        # With checkpoint.keep = 0 the room for all checkpoints follows from the number of steps.
        config = self.config if data is None else with_steps(self.config, run_length(self.config, data.train))
        found = checked_output(config, self.resumed)
        state = (
            "exists already; the run adds a number to the name, and that folder can be made"
            if found.is_taken
            else "can be written"
        )
        room = f"{mib(found.needed)} MiB of {mib(found.free)} MiB free"
        if found.is_counted:
            return "ok", f"{found.path} {state}; checkpoints take {room}"
        reason = "checkpoint.keep = 0 keeps all, and their number follows from the indexed data"
        return "later", f"{found.path} {state}; a checkpoint takes {room}; {reason}"


def check_services(config: RunConfig) -> tuple[Status, str]:
    """Check that the run's experiment trackers are installed.

    Raises:
        HydraulisError: A tracker's package is missing (code `extra_missing`).
    """
    require_trackers(config.output)
    trackers = [("TensorBoard", config.output.tensorboard), ("Weights & Biases", config.output.wandb_project)]
    return "ok", ", ".join(name for name, is_wanted in trackers if is_wanted) or "none configured"
