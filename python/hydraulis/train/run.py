"""What a rank of a training run does, start to end."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch.distributed as dist

from hydraulis._core import Cluster, CostProfile, Scheme
from hydraulis.cli.display import TrainingDisplay
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.options import json_line
from hydraulis.config.run import RunConfig, to_dict
from hydraulis.data.analysis import ANALYSIS
from hydraulis.data.dataset import Dataset, SequenceSource
from hydraulis.data.open import Data
from hydraulis.data.repeats import repeats_of
from hydraulis.data.run_analysis import analysis_of
from hydraulis.data.run_length import epochs_of, with_steps
from hydraulis.planner.counted import counted
from hydraulis.planner.static import StaticComparison
from hydraulis.profile.measure import WARMING_UP, what_it_takes
from hydraulis.profile.of_run import measured_profile, measurement_limits, saved_profile
from hydraulis.profile.served import write_profile
from hydraulis.runtime.beginning import begin
from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.resume import ResumedRun, find_resumed
from hydraulis.runtime.checkpoint.saver import CheckpointSaver
from hydraulis.runtime.checkpoint.shared import check_shared
from hydraulis.runtime.device import device_name
from hydraulis.runtime.distributed import ranks_per_node
from hydraulis.runtime.evaluator import Evaluator
from hydraulis.runtime.hugging_face.files import carry
from hydraulis.runtime.hugging_face.positions import positions_note
from hydraulis.runtime.loop import Iteration, iterations
from hydraulis.runtime.output_folder import look_at_output
from hydraulis.runtime.rank_zero import from_rank_zero, on_rank_zero
from hydraulis.runtime.recorder import Recorder, RunSummary
from hydraulis.runtime.run_data import load_data
from hydraulis.runtime.run_directory import CONFIG, RunDirectory
from hydraulis.runtime.run_planner import RunPlanner, run_link
from hydraulis.runtime.run_schemes import named_strategies, restricted, run_schemes
from hydraulis.runtime.stop import StopRequest
from hydraulis.runtime.tracking.tracker import open_trackers, require_trackers
from hydraulis.runtime.worker import Worker


def train(config: RunConfig, rank: int, stop: StopRequest, *, as_json: bool = False) -> int:
    """Run the configuration as one rank of a process group; give the exit code.

    Args:
        config: of the run.
        rank: of this process.
        stop: who asks for the end of the run.
        as_json: whether the summary is printed as JSON on one line, and all else on standard error.
    """
    with TrainingDisplay(rank, json=as_json) as display, ExitStack() as told:
        cluster = Cluster(gpus=dist.get_world_size(), gpus_per_node=ranks_per_node())
        named_strategies(config.planner, cluster)
        resumed = find_resumed(config.checkpoint.resume, config.output.directory)
        on_rank_zero(lambda: _look_ahead(config, resumed))
        data = _opened(config, stop, display)
        if data is None:
            return EXIT_INTERRUPTED
        config = _with_steps(config, data.train, display)
        position = DataPosition(config, data.train)
        _check_resumed(config, resumed, position, display)
        first = completed = resumed.manifest.step if resumed else 0
        nothing_left = resumed.nothing_left(config.train.num_steps) if resumed else None
        if nothing_left is not None:
            # Before anything is measured or written: the run's files stay those of its training.
            display.note(nothing_left)
            if rank == 0 and as_json:
                _print_account(config, None, first)
            return 0
        saved = saved_profile(config, resumed, display.note)
        schemes = run_schemes(config, cluster, saved)
        _note_positions(config, display)
        display.doing("making the model")
        worker = begin(config, schemes, resumed)
        display.note(f"computing on {device_name(worker.device)}, attention by {worker.kernel.name}")
        whole = saved or _measured(config, worker, schemes, stop, display)
        if whole is None:
            return EXIT_INTERRUPTED
        display.doing("beginning the run")
        profile = restricted(whole, schemes)
        link = run_link(config.planner, profile, cluster, worker.buffers)
        planner = RunPlanner(config.planner, profile, cluster, link)
        planner.check_longest(data.longest)
        # Earlier steps of the folder may have used schemes that plans no longer do.
        recorder = _recorder(config, whole, cluster, planner, data.train, resumed)
        display.note(_where(recorder.directory.path, config.output.directory, resumed))
        saver = _saver(config, worker, position, recorder)
        # Its batches must not use up what strategies training may, nor depend on when they are planned.
        evaluator = Evaluator(
            config, data.held_out, worker, RunPlanner(config.planner, profile, cluster, link)
        )
        dropped = 0
        told.enter_context(_failure_told(recorder.directory.path, first, display))
        for iteration in iterations(config, data.train, worker, planner, stop, first):
            completed += 1
            dropped = iteration.num_dropped
            display.step(iteration.metrics)
            on_rank_zero(partial(_note, iteration, recorder, planner))
            evaluation = evaluator.after(completed)
            if evaluation is not None:
                display.note(f"after step {completed}: loss {evaluation.loss:.3f} on what is held out")
                on_rank_zero(partial(recorder.evaluated, evaluation))
            saver.after(completed)
        if dropped:
            display.note(
                f"dropped at the ends of epochs, where they filled no batch: {counted(dropped, 'sequence')}"
            )
        checkpoint = None
        if completed > first:
            display.doing("writing the last checkpoint")
            checkpoint = saver.close(completed)
        on_rank_zero(recorder.close)
        summary = _summary(recorder, display) if rank == 0 and completed > first else None
    if rank == 0:
        _sum_up(config, display, summary, first, worker.device.type, as_json=as_json)
    return _ended(config, completed, checkpoint, display)


def _opened(config: RunConfig, stop: StopRequest, display: TrainingDisplay) -> Data | None:
    """Open the data, and say what they are; None if that was stopped. Collective."""
    display.doing("opening the data")
    data = load_data(config.data, display.indexing, stop.agreed)
    if data is None:
        display.note("stopped before the first iteration; the next run goes on with the index")
        return None
    data.train.check_vocabulary(config.model.vocab_size)
    display.doing("looking at the data")
    display.data(json.loads(from_rank_zero(lambda: json.dumps(data.train.describe()))))
    return data


def _note_positions(config: RunConfig, display: TrainingDisplay) -> None:
    """Say that sequences may be longer than the model is made for, if they may. Collective."""
    said = from_rank_zero(lambda: positions_note(config))
    if said:
        display.note(said)


def _measured(
    config: RunConfig, worker: Worker, schemes: Sequence[Scheme], stop: StopRequest, display: TrainingDisplay
) -> CostProfile | None:
    """Measure what the schemes cost; None if that was stopped. Collective."""
    display.note(what_it_takes(len(schemes), config.planner.profile_seconds))
    display.doing(WARMING_UP)
    profile = measured_profile(worker, schemes, measurement_limits(config), display.measuring, stop.agreed)
    if profile is None:
        display.note("stopped before the first iteration; nothing was written")
    return profile


def _summary(recorder: Recorder, display: TrainingDisplay) -> RunSummary:
    display.doing("comparing with static strategies")
    return recorder.summary()


def _sum_up(
    config: RunConfig,
    display: TrainingDisplay,
    summary: RunSummary | None,
    first_step: int,
    device_kind: str,
    *,
    as_json: bool,
) -> None:
    if summary is not None:
        display.summary(summary, device_kind)
    if as_json:
        _print_account(config, summary, first_step)


def _print_account(config: RunConfig, summary: RunSummary | None, first_step: int) -> None:
    """Print what `--json` does: the summary, which needs a step, and how many were asked for."""
    facts = {"first_step": first_step, "steps": 0} if summary is None else asdict(summary)
    finished = facts["first_step"] + facts["steps"] >= config.train.num_steps
    account = {"num_steps": config.train.num_steps, "finished": finished, **facts}
    sys.stdout.write(json_line(account, *(summary.files if summary else ())))


def _ended(config: RunConfig, completed: int, checkpoint: Path | None, display: TrainingDisplay) -> int:
    """Give the exit code, and say where the run was stopped if it was."""
    if completed >= config.train.num_steps:
        return 0
    display.stopped(completed, checkpoint)
    return EXIT_INTERRUPTED


def _with_steps(config: RunConfig, data: SequenceSource, display: TrainingDisplay) -> RunConfig:
    """Count the steps of a run that epochs end, and say if each of them repeats what there is."""
    epochs = epochs_of(config, data)
    config = with_steps(config, epochs)
    display.num_steps(config.train.num_steps)
    if epochs is not None:
        last = (
            f"the last batch has {counted(epochs.last_sequences, 'sequence')} of "
            f"{epochs.last_tokens:,} tokens"
            if config.train.num_steps == epochs.steps
            else f"trained are {config.train.num_steps:,} of them"
        )
        display.note(f"{epochs}; {last}")
    repeats = repeats_of(config, data)
    if repeats:
        display.note(repeats)
    return config


def _look_ahead(config: RunConfig, resumed: ResumedRun | None) -> None:
    """Refuse now what would fail after hours of work: services, the run's folder, its room."""
    require_trackers(config.output)
    look_at_output(config, resumed)


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


def _saver(config: RunConfig, worker: Worker, position: DataPosition, recorder: Recorder) -> CheckpointSaver:
    """Make what writes the checkpoints of the run. Collective."""
    check_shared(recorder.directory.path)
    folder = CheckpointFolder.of_run(recorder.directory.path)
    describe = Description(config, position, worker.home.master.dtype)
    return CheckpointSaver(folder, config.checkpoint, worker.shares, describe)


def _recorder(
    config: RunConfig,
    profile: CostProfile,
    cluster: Cluster,
    planner: RunPlanner,
    data: Dataset,
    resumed: ResumedRun | None,
) -> Recorder:
    """Make the run's folder, or go on in it, and write its first files. Collective; rank 0 writes."""

    def create() -> str:
        directory = RunDirectory.create(config.output.directory) if not resumed else RunDirectory(resumed.run)
        directory.write(CONFIG, json.dumps(to_dict(config), indent=2) + "\n")
        directory.write("corpus.json", json.dumps(data.describe(), indent=2) + "\n")
        directory.write(ANALYSIS, json.dumps(analysis_of(config, data, cluster.gpus).to_dict()) + "\n")
        write_profile(directory, profile, resumed.manifest.step if resumed else 0)
        if config.checkpoint.weights:
            carry(Path(config.checkpoint.weights), directory.path, config.data)
        return str(directory.path)

    directory = RunDirectory(Path(from_rank_zero(create)))
    longest = int(data.lengths.max())
    # Its times would not be corrected as those of the run's plans are.
    static = (
        None
        if config.planner.recalibrate
        else StaticComparison.over(
            profile, cluster, planner.strategies, longest, memory=config.planner.memory
        )
    )
    traced = config.train.trace_step
    # A shorter run than the configuration was written for still leaves a trace.
    last = config.train.num_steps - 1
    recorder = Recorder(directory, planner, static, None if traced is None else min(traced, last))
    first = resumed.manifest.step if resumed else 0
    on_rank_zero(lambda: setattr(recorder, "trackers", open_trackers(config, directory.path, first)))
    if resumed is not None:

        def go_on() -> None:
            recorder.go_on(resumed.manifest.step)
            planner.resume(recorder.used(), recorder.factors())

        on_rank_zero(go_on)
    return recorder


def _where(directory: Path, wanted: str, resumed: ResumedRun | None) -> str:
    """Say in which folder a run writes: a name that is taken gets a number."""
    is_taken = resumed is None and directory != Path(wanted)
    why = f": output.directory = {wanted!r} is there already" if is_taken else ""
    return f"writing into {directory}{why}"


@contextmanager
def _failure_told(directory: Path, first: int, display: TrainingDisplay) -> Iterator[None]:
    """Let a run that fails in the middle say where it stands, before its error is told."""
    try:
        yield
    except Exception:
        display.failed(first, CheckpointFolder.of_run(directory).newest())
        raise


def _note(iteration: Iteration, recorder: Recorder, planner: RunPlanner) -> None:
    """Record an iteration, and learn from it, unless counting memory took a part of its times."""
    recorder.add(iteration)
    if not iteration.outcome.is_counted:
        planner.observe(iteration.plan, iteration.outcome.timelines)
    if planner.recalibration is not None:
        recorder.recalibrated(planner.recalibration.factors)
