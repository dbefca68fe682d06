"""Everything that trains a run and writes it down, made once its data are open."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Self

from hydraulis._core import CostProfile, Scheme
from hydraulis.cli.terminal.display import TrainingDisplay
from hydraulis.config.run import RunConfig, to_dict
from hydraulis.data.analysis import analyze_run
from hydraulis.errors import HydraulisError
from hydraulis.planner.profile_document import with_schemes
from hydraulis.planner.static import StaticComparison
from hydraulis.profile.measure import WARMING_UP, announcement
from hydraulis.profile.profile_files import write_profile
from hydraulis.profile.run_profile import measured_profile, measurement_limits, saved_profile
from hydraulis.runtime.build import begin
from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.saver import CheckpointSaver
from hydraulis.runtime.checkpoint.shared import check_shared
from hydraulis.runtime.evaluator import Evaluator
from hydraulis.runtime.hugging_face.files import carry, tokenizer_note
from hydraulis.runtime.hugging_face.positions import positions_note
from hydraulis.runtime.loop import Iteration, iterations
from hydraulis.runtime.planning.run_planner import RunPlanner, run_link
from hydraulis.runtime.planning.run_schemes import run_schemes
from hydraulis.runtime.ranks.device import device_name
from hydraulis.runtime.ranks.liveness import is_lost, lost_rank
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.recorder import Recorder
from hydraulis.runtime.records.run_directory import ANALYSIS, CORPUS, RUN_CONFIG, RunDirectory
from hydraulis.runtime.records.run_lock import RunClaim
from hydraulis.runtime.records.tracking.tracker import open_trackers
from hydraulis.runtime.state.weight_decay import no_decay_note
from hydraulis.runtime.worker import Worker
from hydraulis.text.numbers import format_count
from hydraulis.train.opened_run import OpenedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """What trains a run on one rank.

    Attributes:
        run: that is trained.
        worker: of this rank.
        planner: of the training's batches.
        evaluator: of what is held out.
        recorder: of the run's folder.
        saver: of its checkpoints.
    """

    run: OpenedRun
    worker: Worker
    planner: RunPlanner
    evaluator: Evaluator
    recorder: Recorder
    saver: CheckpointSaver

    @classmethod
    def of(cls, run: OpenedRun, stop: StopRequest, display: TrainingDisplay) -> Self | None:
        """Make the model, learn what its schemes cost, and begin the folder; None if stopped. Collective."""
        config = run.config
        saved = saved_profile(config, run.resumed, display.note)
        schemes = run_schemes(config, run.cluster, saved)
        _note_model(config, display)
        display.doing("making the model")
        worker = begin(config, schemes, run.resumed)
        display.note(f"computing on {device_name(worker.device)}, attention by {worker.kernel.name}")
        whole = saved or _measured(run, worker, schemes, stop, display)
        if whole is None:
            return None
        display.doing("beginning the run")
        profile = with_schemes(whole, schemes)
        link = run_link(config.planner, profile, run.cluster, worker.buffers)
        planner = RunPlanner(config.planner, profile, run.cluster, link)
        planner.check_longest(run.data.longest)
        # Earlier steps of the folder may have used schemes that plans no longer do.
        recorder = _recorder(run, whole, planner)
        display.note(_where(recorder.directory.path, config.output.directory, begins=run.resumed is None))
        saver = _saver(run, worker, recorder)
        # Its batches must not use up what strategies training may, nor depend on when they are planned.
        evaluating = RunPlanner(config.planner, profile, run.cluster, link)
        evaluator = Evaluator(config, run.data.held_out, worker, evaluating)
        return cls(
            run=run, worker=worker, planner=planner, evaluator=evaluator, recorder=recorder, saver=saver
        )

    def train(self, stop: StopRequest, display: TrainingDisplay) -> int:
        """Train until the end or until stopped, and give how many steps are done then. Collective."""
        completed, dropped = self.run.completed, 0
        for iteration in self._iterations(stop):
            completed, dropped = iteration.metrics.step, iteration.num_dropped
            display.step(iteration.metrics)
            on_rank_zero(partial(self._record, iteration))
            self._evaluate(completed, display)
            self.saver.after(completed)
        if dropped:
            display.note(
                "dropped at the ends of epochs, where they filled no batch: "
                f"{format_count(dropped, 'sequence')}"
            )
        return completed

    def close(self, completed: int, display: TrainingDisplay) -> Path | None:
        """Write the last checkpoint, of which the path is given, if a step was trained. Collective."""
        checkpoint = None
        if completed > self.run.completed:
            display.doing("writing the last checkpoint")
            checkpoint = self.saver.close(completed)
        on_rank_zero(self.recorder.close)
        return checkpoint

    @contextmanager
    def failure_told(self, display: TrainingDisplay) -> Iterator[None]:
        """Let a run that fails in the middle say where it stands, before its error is told.

        Where all ranks fail alike, what was being written is a checkpoint then. Of the failure of some the
        others know nothing, and would not meet them.

        Raises:
            HydraulisError: in place of what tells that another rank ended (code `lost_rank`).
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, HydraulisError) and error.is_everywhere:
                self._complete_checkpoint(display)
            folder = CheckpointFolder.of_run(self.recorder.directory.path)
            every_steps = self.run.config.checkpoint.every_steps
            standing = display.standing(self.run.completed, folder.newest(), every_steps)
            if is_lost(error):
                # Told by whoever is left, which rank 0 may not be.
                raise lost_rank(error, standing) from error
            display.failed(standing)
            raise

    def _complete_checkpoint(self, display: TrainingDisplay) -> None:
        """Complete the checkpoint that is being written, if any; an error of that is told and not raised."""
        display.doing("completing the last checkpoint")
        try:
            self.saver.finish()
        except Exception as error:
            # It must not hide what the run failed with.
            display.note(f"the last checkpoint is not complete: {error}")

    def _iterations(self, stop: StopRequest) -> Iterator[Iteration]:
        run = self.run
        return iterations(run.config, run.data.train, self.worker, self.planner, stop, run.completed)

    def _record(self, iteration: Iteration) -> None:
        """Record an iteration, and learn from it, unless counting memory took a part of its times."""
        self.recorder.add(iteration)
        if not iteration.outcome.is_counted:
            self.planner.observe(iteration.plan, iteration.outcome.timelines)
        if self.planner.recalibration is not None:
            self.recorder.recalibrated(self.planner.recalibration.factors)

    def _evaluate(self, completed: int, display: TrainingDisplay) -> None:
        evaluation = self.evaluator.after(completed)
        if evaluation is not None:
            display.note(f"after step {completed}: loss {evaluation.loss:.3f} on what is held out")
            on_rank_zero(partial(self.recorder.evaluated, evaluation))


def _note_model(config: RunConfig, display: TrainingDisplay) -> None:
    """Say what the model is not made for: sequences' length, their tokens, what not to decay. Collective."""
    notes = (
        lambda: positions_note(config),
        lambda: tokenizer_note(config.checkpoint.weights, config.data),
        lambda: no_decay_note(config),
    )
    for said in map(from_rank_zero, notes):
        if said:
            display.note(said)


def _measured(
    run: OpenedRun, worker: Worker, schemes: Sequence[Scheme], stop: StopRequest, display: TrainingDisplay
) -> CostProfile | None:
    """Measure what the schemes cost; None if that was stopped. Collective."""
    config = run.config

    def check(untimed: CostProfile) -> None:
        # Times take long, and do not decide what is admitted.
        RunPlanner(config.planner, untimed, run.cluster).check_longest(run.data.longest)

    display.note(announcement(len(schemes), config.planner.profile_seconds))
    display.doing(WARMING_UP)
    limits = measurement_limits(config)
    profile = measured_profile(worker, schemes, limits, display.measuring, stop.agreed, check)
    if profile is None:
        display.note("stopped before the first iteration; nothing was written")
    return profile


def _recorder(run: OpenedRun, profile: CostProfile, planner: RunPlanner) -> Recorder:
    """Make what writes down the run, in its folder. Collective; rank 0 writes."""
    claims: list[RunClaim] = []

    def make() -> str:
        made = (
            RunDirectory(run.resumed.run) if run.resumed else RunDirectory.create(run.config.output.directory)
        )
        claims.append(RunClaim(made.path))
        _write_first(made, run, profile)
        return str(made.path)

    directory = RunDirectory(Path(from_rank_zero(make)))
    traced = run.config.train.trace_step
    # A shorter run than the configuration was written for still leaves a trace.
    trace_step = None if traced is None else min(traced, run.config.train.num_steps)
    recorder = Recorder(directory, planner, trace_step, claim=claims[0] if claims else None)

    def take_up() -> None:
        recorder.static = _static(run, profile, planner)
        recorder.trackers = open_trackers(run.config, directory, run.completed)
        if run.resumed is not None:
            recorder.go_on(run.completed)
            planner.resume(recorder.used(), recorder.factors())

    on_rank_zero(take_up)
    return recorder


def _write_first(directory: RunDirectory, run: OpenedRun, profile: CostProfile) -> None:
    """Write the first files of a run."""
    config, data = run.config, run.data.train
    directory.write(RUN_CONFIG, json.dumps(to_dict(config), indent=2) + "\n")
    corpus = data.describe() | {"files": list(map(asdict, run.files))}
    directory.write(CORPUS, json.dumps(corpus, indent=2) + "\n")
    directory.write(ANALYSIS, json.dumps(analyze_run(config, data, run.cluster.gpus).to_dict()) + "\n")
    write_profile(directory, profile, run.completed)
    if config.checkpoint.weights:
        carry(Path(config.checkpoint.weights), directory, config.data)


def _static(run: OpenedRun, profile: CostProfile, planner: RunPlanner) -> StaticComparison | None:
    """Make what compares the run with static strategies, unless its plans' times are corrected on the way."""
    if run.config.planner.recalibrate:
        return None
    longest, memory = int(run.data.train.lengths.max()), run.config.planner.memory
    return StaticComparison.over(profile, run.cluster, planner.strategies, longest, memory=memory)


def _saver(run: OpenedRun, worker: Worker, recorder: Recorder) -> CheckpointSaver:
    """Make what writes the checkpoints of the run. Collective."""
    check_shared(recorder.directory.path)
    folder = CheckpointFolder.of_run(recorder.directory.path)
    describe = Description(run.config, run.position, worker.home.master.dtype)
    return CheckpointSaver(folder, run.config.checkpoint, worker.shares, describe)


def _where(directory: Path, wanted: str, *, begins: bool) -> str:
    """Say in which folder a run writes: a name that is taken gets a number."""
    is_taken = begins and directory != Path(wanted)
    why = f": output.directory = {wanted!r} is there already" if is_taken else ""
    return f"writing into {directory}{why}"
