"""What a run goes on from, where it writes, and who follows it."""

from hydraulis.config.planner import MIB
from hydraulis.config.run import RunConfig
from hydraulis.data.open import Datasets
from hydraulis.data.sampling.run_length import run_length, with_steps
from hydraulis.data.sources.data_files import list_data_files
from hydraulis.errors import InvalidInputError
from hydraulis.preflight.finding import Status
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.reader import check_shards, read_manifest
from hydraulis.runtime.checkpoint.resume import ResumedRun, newest_of
from hydraulis.runtime.records.output_folder import look_at_output
from hydraulis.runtime.records.run_lock import check_unclaimed
from hydraulis.runtime.records.tracking.tracker import require_trackers


class FolderLook:
    """Looks at the folder that a run goes on from, and at the one where it writes.

    Attributes:
        config: of the run.
        resumed: the run to go on with; None if there is none, or it is refused.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.resumed: ResumedRun | None = None

    def goes_on(self) -> bool:
        """Tell whether the run goes on with a checkpoint, or is refused: it reads no other parameters."""
        resume = self.config.checkpoint.resume
        try:
            return bool(resume) and newest_of(resume, self.config.output.directory) is not None
        except InvalidInputError:
            # Said where the checkpoint is looked at.
            return True

    def resume(self, data: Datasets | None) -> tuple[Status, str]:
        """Find the checkpoint to go on from, and compare it with the run as far as the data are known.

        Raises:
            HydraulisError: it is not there, not whole, being trained (see `check_unclaimed`), or of another
                model or data (see `ResumedRun.check`).
        """
        resume = self.config.checkpoint.resume
        if not resume:
            return "ok", "begins anew"
        checkpoint = newest_of(resume, self.config.output.directory)
        if checkpoint is None:
            return "ok", "there is no checkpoint yet: begins anew"
        resumed = ResumedRun(checkpoint.parents[1], checkpoint, read_manifest(checkpoint))
        self.resumed = resumed
        check_unclaimed(resumed.run)
        check_shards(checkpoint, resumed.manifest)
        resumed.check_model(self.config)
        resumed.check_unread(self.config, list_data_files(self.config.data))
        if data is None:
            return "later", f"{checkpoint} is whole; its data are compared once they are indexed"
        config = with_steps(self.config, run_length(self.config, data.train))
        resumed.check(config, DataPosition(config, data.train).cursor(resumed.manifest.step))
        nothing_left = resumed.nothing_left(config.train.num_steps)
        if nothing_left:
            return "warning", nothing_left
        return "ok", f"goes on after step {resumed.manifest.step} of {resumed.run}"

    def output(self, data: Datasets | None) -> tuple[Status, str]:
        """See whether the run's folder can be made, or gone on in, and has room for its checkpoints.

        Raises:
            HydraulisError: The folder cannot be made or written, or has no room (code `file_unwritable`), or
                `run_length` refuses the epochs.
        """
        # Where all checkpoints stay, the number of steps says how many there will be.
        config = self.config if data is None else with_steps(self.config, run_length(self.config, data.train))
        found = look_at_output(config, self.resumed)
        made = (
            "is there already, so a number is added to its name: that can be made"
            if found.is_taken
            else "can be written"
        )
        room = f"{found.needed / MIB:,.0f} MiB of {found.free / MIB:,.0f} MiB free"
        if found.is_counted:
            return "ok", f"{found.path} {made}; checkpoints take {room}"
        known = "checkpoint.keep = 0 keeps all, and how many is known once the data are indexed"
        return "later", f"{found.path} {made}; a checkpoint takes {room}; {known}"


def look_at_services(config: RunConfig) -> tuple[Status, str]:
    """See whether the services that follow the run are installed.

    Raises:
        HydraulisError: one is not (code `extra_missing`).
    """
    require_trackers(config.output)
    asked = [("TensorBoard", config.output.tensorboard), ("Weights & Biases", config.output.wandb_project)]
    return "ok", ", ".join(name for name, wanted in asked if wanted) or "none is asked for"
