"""What is known of a run once its data are open, before anything is made for it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch.distributed as dist

from hydraulis._core import Cluster
from hydraulis.cli.terminal.display import TrainingDisplay
from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.open import Datasets
from hydraulis.data.sampling.run_length import run_length, with_steps
from hydraulis.data.sampling.run_sampler import describe_run_repeats
from hydraulis.data.sources.data_files import DataFile, list_data_files
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.resume import ResumedRun, find_resumed
from hydraulis.runtime.planning.run_schemes import named_strategies
from hydraulis.runtime.ranks.distributed import ranks_per_node
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.output_folder import look_at_output
from hydraulis.runtime.records.run_lock import check_unclaimed
from hydraulis.runtime.records.tracking.tracker import require_trackers
from hydraulis.runtime.run_data import load_data
from hydraulis.text.numbers import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A run that may begin.

    Attributes:
        config: of the run; how many steps it has is known.
        cluster: of its ranks.
        data: that it trains on, and that is held out.
        files: of the data; none where they come from elsewhere, and on other ranks than rank 0.
        position: of the data, at any step.
        resumed: the run that it goes on with; None if it begins anew.
    """

    config: RunConfig
    cluster: Cluster
    data: Datasets
    files: Sequence[DataFile]
    position: DataPosition
    resumed: ResumedRun | None

    @classmethod
    def of(cls, config: RunConfig, stop: StopRequest, display: TrainingDisplay) -> Self | None:
        """Refuse what cannot run, and open the data; None if that was stopped. Collective."""
        cluster = Cluster(gpus=dist.get_world_size(), gpus_per_node=ranks_per_node())
        named_strategies(config.planner, cluster)
        resumed = find_resumed(config.checkpoint.resume, config.output.directory)
        files: list[DataFile] = []
        on_rank_zero(lambda: files.extend(_look_ahead(config, resumed)))
        data = _data(config, stop, display)
        if data is None:
            return None
        config = _with_steps(config, data.train, display)
        # Where all checkpoints stay, only now is known how much room they take together.
        on_rank_zero(partial(_look_at_room, config, resumed))
        position = DataPosition(config, data.train)
        _check_resumed(config, resumed, position, display)
        return cls(config=config, cluster=cluster, data=data, files=files, position=position, resumed=resumed)

    @property
    def completed(self) -> int:
        """How many steps are done already."""
        return self.resumed.manifest.step if self.resumed else 0

    @property
    def nothing_left(self) -> str | None:
        """Says that no step is left to train; None if one is."""
        return self.resumed.nothing_left(self.config.train.num_steps) if self.resumed else None


def _look_ahead(config: RunConfig, resumed: ResumedRun | None) -> list[DataFile]:
    """Refuse now what would fail after hours of work: services, folder, room, other data; list the files."""
    require_trackers(config.output)
    _look_at_room(config, resumed)
    files = list_data_files(config.data)
    if resumed is not None:
        check_unclaimed(resumed.run)
        resumed.check_unread(config, files)
    return files


def _look_at_room(config: RunConfig, resumed: ResumedRun | None) -> None:
    look_at_output(config, resumed)


def _data(config: RunConfig, stop: StopRequest, display: TrainingDisplay) -> Datasets | None:
    """Open the data, and say what they are; None if that was stopped. Collective."""
    display.doing("opening the data")
    data = load_data(config.data, display.indexing, stop.agreed)
    if data is None:
        display.note("stopped before the first iteration; the next run goes on with the index")
        return None
    data.train.check_vocabulary(config.model.vocab_size)
    display.doing("looking at the data")
    display.data(json.loads(from_rank_zero(lambda: json.dumps(data.train.describe()))))
    broken = data.train.broken_note()
    if broken:
        display.note(broken)
    return data


def _with_steps(config: RunConfig, data: SequenceSource, display: TrainingDisplay) -> RunConfig:
    """Count the steps of a run that epochs end, and say if each of them repeats what there is."""
    epochs = run_length(config, data)
    config = with_steps(config, epochs)
    display.num_steps(config.train.num_steps)
    if epochs is not None:
        last = (
            f"the last batch has {format_count(epochs.last_sequences, 'sequence')} of "
            f"{epochs.last_tokens:,} tokens"
            if config.train.num_steps == epochs.steps
            else f"trained are {config.train.num_steps:,} of them"
        )
        display.note(f"{epochs}; {last}")
    repeats = describe_run_repeats(config, data)
    if repeats:
        display.note(repeats)
    return config


def _check_resumed(
    config: RunConfig, resumed: ResumedRun | None, position: DataPosition, display: TrainingDisplay
) -> None:
    """Check that the run to go on with, if there is one, is this one. Collective."""
    if resumed is not None:
        step = resumed.manifest.step
        on_rank_zero(lambda: resumed.check(config, position.cursor(step)))
        display.note(f"going on after step {step} of {resumed.run}")
    elif config.checkpoint.resume:
        display.note("there is no checkpoint to go on with: beginning anew")
