"""A run whose data are open and whose steps are counted, before any part is built for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from hydraulis._core import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.open import Datasets
from hydraulis.data.sampling.run_length import run_length, with_steps
from hydraulis.data.sampling.run_sampler import describe_run_repeats
from hydraulis.data.sources.data_files import DataFile, list_data_files
from hydraulis.data.tokenization.prompts import encode_prompts
from hydraulis.planner.strategies import named_strategies
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.hugging_face.files import check_tokenizer
from hydraulis.runtime.ranks.distributed import run_cluster
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.output_folder import checked_output
from hydraulis.runtime.records.run_lock import check_unlocked
from hydraulis.runtime.records.tracking import require_trackers
from hydraulis.runtime.state.update_rule import require_optimizer
from hydraulis.text.values import format_count
from hydraulis.train.observer import TrainingObserver
from hydraulis.train.restarted_run import find_run, wait_for_lock
from hydraulis.train.run_data import load_data


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A run that is ready to be built.

    Attributes:
        config: Configuration of the run; its number of steps is known.
        cluster: Cluster of the run's ranks.
        data: Training data and held-out data.
        files: Files of the data on rank 0; empty on other ranks, and for data that come from no file.
        position: Position in the data at any step.
        resumed: Run that this one resumes; None for a new run.
    """

    config: RunConfig
    cluster: Cluster
    data: Datasets
    files: Sequence[DataFile]
    position: DataPosition
    resumed: ResumedRun | None

    @classmethod
    def open(cls, config: RunConfig, stop: StopRequest, observer: TrainingObserver) -> Self | None:
        """Check the configuration and open the data. Collective.

        Args:
            config: Configuration of the run.
            stop: Request to end the run.
            observer: Receiver of the run's events.

        Returns:
            The run; None if it was stopped while it waited for its lock or its data were opened.
        """
        cluster = run_cluster()
        named_strategies(config.planner, cluster)
        resumed = find_run(config, observer)
        if resumed is not None and not wait_for_lock(resumed.run, stop, observer):
            return None
        files: list[DataFile] = []
        on_rank_zero(lambda: files.extend(_check_environment(config, resumed)))
        data = _open_data(config, stop, observer)
        if data is None:
            return None
        config = _with_steps(config, data.train, observer)
        # With checkpoint.keep = 0 the room for all checkpoints follows from the number of steps.
        on_rank_zero(partial(checked_output, config, resumed))
        position = DataPosition(config, data.train)
        _check_resumed(config, resumed, files, position, observer)
        position.group = resumed.manifest.data.group if resumed else None
        return cls(config=config, cluster=cluster, data=data, files=files, position=position, resumed=resumed)

    @property
    def completed(self) -> int:
        """Number of steps completed before this run."""
        return self.resumed.manifest.step if self.resumed else 0

    @property
    def nothing_left(self) -> str | None:
        """Message that no step is left to train; None if there is one."""
        return self.resumed.nothing_left(self.config.train.num_steps) if self.resumed else None


def _check_environment(config: RunConfig, resumed: ResumedRun | None) -> list[DataFile]:
    """Check services, optimizer, tokenizer, output, disk room and the resumed run's data; return the files.

    Without these checks the run would fail after hours of indexing or training.
    """
    require_trackers(config.output)
    require_optimizer(config.optimizer)
    check_tokenizer(config.checkpoint.weights, config.data)
    if config.samples.every is not None:
        encode_prompts(config)
    checked_output(config, resumed)
    files = list_data_files(config.data)
    if resumed is not None:
        check_unlocked(resumed.run)
        resumed.check_unread(config, files)
    return files


def _open_data(config: RunConfig, stop: StopRequest, observer: TrainingObserver) -> Datasets | None:
    """Open the data and report their statistics; None if the run was stopped meanwhile. Collective."""
    observer.status("opening the data")
    data = load_data(config.data, observer.indexing, stop.agreed)
    if data is None:
        observer.message("stopped before the first step; the next run continues the index")
        return None
    data.check_vocabulary(config.model.vocab_size)
    observer.status("reading the data's statistics")
    observer.data(from_rank_zero(data.train.describe))
    for left_out in data.describe_left_out():
        observer.message(left_out)
    return data


def _with_steps(config: RunConfig, data: SequenceSource, observer: TrainingObserver) -> RunConfig:
    """Set the number of steps of a run that `train.epochs` ends; report repeated data."""
    epochs = run_length(config, data)
    config = with_steps(config, epochs)
    observer.num_steps(config.train.num_steps)
    if epochs is not None:
        last = (
            f"the last batch has {format_count(epochs.last_sequences, 'sequence')} of "
            f"{epochs.last_tokens:,} tokens"
            if config.train.num_steps == epochs.steps
            else f"train.steps = {config.train.num_steps:,} of them are trained"
        )
        observer.message(f"{epochs}; {last}")
    repeats = describe_run_repeats(config, data)
    if repeats:
        observer.message(repeats)
    return config


def _check_resumed(
    config: RunConfig,
    resumed: ResumedRun | None,
    files: Sequence[DataFile],
    position: DataPosition,
    observer: TrainingObserver,
) -> None:
    """Check that the checkpoint belongs to this model and these data. Collective."""
    if resumed is not None:
        on_rank_zero(lambda: resumed.check(config, position))
        observer.message(f"resuming {resumed}")
        changed = from_rank_zero(lambda: "; ".join(resumed.changed_settings(config)))
        if changed:
            observer.message(f"settings that differ from those of the earlier steps: {changed}")
        changed_files = from_rank_zero(lambda: resumed.describe_changed_files(files))
        if changed_files:
            observer.message(changed_files)
    elif config.checkpoint.resume:
        observer.message("no checkpoint to resume from: starting a new run")
