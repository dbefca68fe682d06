"""The files of a run: its folder with the first files, its recorder, and its writer of checkpoints."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from hydraulis._core import CostProfile
from hydraulis.data.analysis import analyze_run
from hydraulis.data.sampling.evaluation_batches import fingerprint_evaluated
from hydraulis.planner.static import StaticComparison
from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.saver import CheckpointSaver
from hydraulis.runtime.checkpoint.shared import check_shared
from hydraulis.runtime.hugging_face.files import carry
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.ranks.flight_recorder import keep_dumps_in
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero
from hydraulis.runtime.records.recorder import Recorder
from hydraulis.runtime.records.replaced_files import write_profile
from hydraulis.runtime.records.run_config import write_config
from hydraulis.runtime.records.run_directory import ANALYSIS, CORPUS, RunDirectory
from hydraulis.runtime.records.run_lock import RunLock
from hydraulis.runtime.records.tracking import open_trackers
from hydraulis.runtime.worker import Worker
from hydraulis.train.opened_run import OpenedRun
from hydraulis.train.restarted_run import remember_run


def build_recorder(
    run: OpenedRun, profile: CostProfile, planner: RunPlanner, note: Callable[[str], None]
) -> Recorder:
    """Create or reopen the run directory and its recorder; note lost records. Collective; rank 0 writes."""
    locks: list[RunLock] = []
    replaced: list[bool] = []

    def create() -> str:
        made = (
            RunDirectory(run.resumed.run) if run.resumed else RunDirectory.create(run.config.output.directory)
        )
        locks.append(RunLock(made.path))
        remember_run(made.path)
        _write_first(made, run)
        replaced.append(write_profile(made, profile, run.completed))
        return str(made.path)

    directory = RunDirectory(Path(from_rank_zero(create)))
    keep_dumps_in(directory.path)
    traced = run.config.train.trace_step
    # A run shorter than train.trace_step traces its last step.
    trace_step = None if traced is None else min(traced, run.config.train.num_steps)
    recorder = Recorder(directory, planner, trace_step, lock=locks[0] if locks else None)

    def resume() -> None:
        recorder.static = _static(run, profile, planner)
        recorder.trackers = open_trackers(run.config, directory, run.completed)
        if run.resumed is not None:
            for lost in recorder.go_on(run.completed):
                note(lost)
            last = recorder.last()
            _note_other_evaluations(run, recorder, note)
            # Factors correct the times of the profile that they were measured with.
            factors = {} if any(replaced) else recorder.factors(run.completed)
            planner.resume(recorder.used(), factors, last.rank_rates if last else ())

    on_rank_zero(resume)
    return recorder


def _note_other_evaluations(run: OpenedRun, recorder: Recorder, note: Callable[[str], None]) -> None:
    """Note earlier evaluations of other data than this run evaluates on."""
    train, held_out = run.config.train, run.data.held_out
    if held_out is None or train.evaluate_every is None:
        return
    others = recorder.describe_other_evaluations(fingerprint_evaluated(held_out, train.evaluate_sequences))
    if others:
        note(others)


def _write_first(directory: RunDirectory, run: OpenedRun) -> None:
    """Write the files that a run directory has before its first step."""
    config, data = run.config, run.data.train
    write_config(directory, config, run.completed)
    corpus = data.describe() | {"files": list(map(asdict, run.files))}
    directory.write(CORPUS, json.dumps(corpus, indent=2) + "\n")
    directory.write(ANALYSIS, json.dumps(analyze_run(config, data, run.cluster.gpus).to_dict()) + "\n")
    if config.checkpoint.weights:
        carry(Path(config.checkpoint.weights), directory, config.data)


def _static(run: OpenedRun, profile: CostProfile, planner: RunPlanner) -> StaticComparison | None:
    """Build the comparison with static strategies; None with `planner.recalibrate`.

    Recalibration changes the times that plans are made with, and static plans would not compare with them.
    """
    if run.config.planner.recalibrate:
        return None
    longest, memory = int(run.data.train.lengths.max()), run.config.planner.memory
    return StaticComparison.for_strategies(
        profile, planner.cluster, planner.strategies, longest, link=planner.link, memory=memory
    )


def build_saver(run: OpenedRun, worker: Worker, recorder: Recorder) -> CheckpointSaver:
    """Build the checkpoint writer of the run. Collective."""
    check_shared(recorder.directory.path)
    folder = CheckpointFolder.of_run(recorder.directory.path)
    describe = Description(run.config, run.position, worker.optimizer_shard.master.dtype)
    return CheckpointSaver(folder, run.config.checkpoint, worker.optimizer_shard, describe, worker.votes)


def directory_message(directory: Path, run: OpenedRun) -> str:
    """Name the run directory, and say why if it is not the one that the configuration names."""
    wanted = run.config.output.directory
    is_numbered = run.resumed is None and directory != Path(wanted)
    why = f": output.directory = {wanted!r} exists already" if is_numbered else ""
    return f"writing into {directory}{why}"
