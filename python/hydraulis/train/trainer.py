"""The parts that train a run on one rank, built once its data are open, and the loop over its steps."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import torch.distributed as dist

from hydraulis._core import CostProfile, Scheme
from hydraulis.data.tokenization.prompts import longest_prompt
from hydraulis.errors import LOST_RANK, HydraulisError
from hydraulis.planner.profile_document import with_schemes
from hydraulis.profile.measure import WARMING_UP, announcement
from hydraulis.profile.run_profile import measured_profile, measurement_limits, saved_profile
from hydraulis.runtime.build import build_worker
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.saver import CheckpointSaver
from hydraulis.runtime.evaluator import Evaluator
from hydraulis.runtime.iteration import Iteration
from hydraulis.runtime.jumps import recall_jumps
from hydraulis.runtime.loop import iterations
from hydraulis.runtime.memory.device_memory import FRAGMENTED, FragmentationCheck, fragmentation_note
from hydraulis.runtime.memory.out_of_memory import naming_out_of_memory
from hydraulis.runtime.planning.longest import check_longest
from hydraulis.runtime.planning.rank_devices import with_rank_devices
from hydraulis.runtime.planning.run_planner import RunPlanner, run_link
from hydraulis.runtime.planning.run_schemes import run_schemes, with_derived_schemes, with_layer_splits
from hydraulis.runtime.planning.step_batches import StepPosition
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.device import device_name, dtype_note
from hydraulis.runtime.ranks.liveness.check import broken_connection, is_lost
from hydraulis.runtime.ranks.liveness.heartbeat import current, limit, report_slow_ranks
from hydraulis.runtime.ranks.rank_zero import from_rank_zero, on_rank_zero, on_rank_zero_alone, raise_deferred
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.recorder import Recorder, RunSummary
from hydraulis.runtime.recovery.host_room import with_room_for_copies
from hydraulis.runtime.recovery.keeper import StateKeeper
from hydraulis.runtime.text_sampler import TextSampler
from hydraulis.runtime.worker import Worker
from hydraulis.text.values import format_count
from hydraulis.train.notes import (
    cpu_times_note,
    describe_kernels,
    naming_resumed,
    rate_messages,
    report_model,
)
from hydraulis.train.observer import RunProgress, TrainingObserver
from hydraulis.train.opened_run import OpenedRun
from hydraulis.train.run_records import build_recorder, build_saver, directory_message
from hydraulis.train.slow_links import SlowLinks
from hydraulis.train.state_copies import build_keeper
from hydraulis.train.step_profiler import profiled_steps


@dataclass(slots=True, kw_only=True)
class Trainer:
    """The parts that train a run on one rank.

    Attributes:
        run: Run to train.
        worker: This rank's worker.
        planner: Planner of the training batches.
        evaluator: Evaluator of the held-out data.
        text_sampler: Sampler of continuations of the configured prompts.
        recorder: Recorder of the run directory's files.
        saver: Writer of checkpoints.
        keeper: Copier of the state into the memory of the nodes; None without such copies.
        stop: Request to end the run after the current step.
        observer: Receiver of the run's events.
        completed: Number of completed steps, including those of resumed runs.
        hosts: Name of each rank's host; on rank 0 only.
        slow_links: Check of the links between nodes.
        has_warned: Whether the fragmentation of the allocator was reported.
    """

    run: OpenedRun
    worker: Worker
    planner: RunPlanner
    evaluator: Evaluator
    text_sampler: TextSampler
    recorder: Recorder
    saver: CheckpointSaver
    keeper: StateKeeper | None
    stop: StopRequest
    observer: TrainingObserver
    completed: int
    hosts: Sequence[str]
    slow_links: SlowLinks
    has_warned: bool = False

    @classmethod
    def build(cls, run: OpenedRun, stop: StopRequest, observer: TrainingObserver) -> Self | None:
        """Build the model, take or measure its cost profile, and create the run directory. Collective.

        Args:
            run: Run to train.
            stop: Request to end the run.
            observer: Receiver of the run's events.

        Returns:
            The trainer; None if the run was stopped during the measurement.
        """
        config = run.config
        saved = saved_profile(config, run.cluster, run.resumed, observer.message)
        schemes = run_schemes(config, run.cluster, saved)
        report_model(config, observer)
        observer.status("building the model")
        worker = build_worker(config, with_layer_splits(config, schemes), run.resumed)
        observer.message(f"computing on {device_name(worker.device)}, {describe_kernels(worker)}")
        note = dtype_note(worker.local_shard.parameter.dtype) if worker.device.type == "cuda" else ""
        if worker.device.type == "cpu":
            note = cpu_times_note(min(run.cluster.gpus, run.cluster.gpus_per_node))
        if note:
            observer.message(note)
        longest = _longest(run)
        whole = saved or _measured(run, worker, schemes, longest, stop, observer)
        if whole is None:
            return None
        observer.status("preparing the planner")
        whole = with_derived_schemes(whole, config.planner)
        profile = with_derived_schemes(with_schemes(whole, schemes), config.planner)
        profile = with_room_for_copies(profile, config, run.cluster, observer.message)
        cluster = with_rank_devices(run.cluster, profile, worker.device, observer.message)
        dtype = worker.local_shard.parameter.dtype
        link = run_link(config.planner, profile, cluster, worker.parameters, dtype)
        planner = RunPlanner(
            config.planner, profile, cluster, link, includes_waits=worker.device.type == "cuda"
        )
        # A planner of its own: evaluation must not count against planner.max_strategies of training.
        evaluating = RunPlanner(config.planner, profile, cluster, link)
        text_sampler = TextSampler(config, worker, evaluating)
        check_longest(planner, config.planner, profile, longest)
        observer.status("creating the run directory")
        # The directory gets the unrestricted profile: resumed steps may have used more schemes.
        recorder = build_recorder(run, whole, planner, observer.message)
        observer.message(directory_message(recorder.directory.path, run))
        if run.resumed is not None:
            recall_jumps(worker.jumps, recorder.directory, run.completed)
        saver = build_saver(run, worker, recorder)
        hosts = host.gather_objects(socket.gethostname()) or []
        return cls(
            run=run,
            worker=worker,
            planner=planner,
            evaluator=Evaluator(config, run.data.held_out, worker, evaluating),
            text_sampler=text_sampler,
            recorder=recorder,
            saver=saver,
            keeper=build_keeper(run, worker, recorder.directory.path, observer),
            stop=stop,
            observer=observer,
            completed=run.completed,
            hosts=hosts,
            slow_links=SlowLinks(worker, planner, hosts, observer),
        )

    def train(self) -> None:
        """Train until the last step or until stopped. Collective."""
        dropped = 0
        if self.worker.device.type == "cuda":
            check = FragmentationCheck(self.worker.device, self.worker.memory)
            self.worker.votes.ask(FRAGMENTED, check.is_fragmented)
        report_slow_ranks(self.observer.message)
        self.observer.status("running the first step")
        self._limit_step()
        for iteration in self._iterations():
            self.completed, dropped = iteration.metrics.step, iteration.num_dropped
            self.run.position.group = iteration.group
            self.observer.step(iteration.metrics)
            self._warn_fragmented()
            if iteration.result.jump is not None:
                self.observer.message(iteration.result.jump)
            on_rank_zero_alone(partial(self._record, iteration))
            self.slow_links.check(self.completed)
            self._evaluate()
            self._sample()
            self._limit_save()
            if self.keeper is not None:
                self.keeper.after(self.completed)
            self.saver.after(self.completed)
            self._limit_step()
        raise_deferred()
        limit("", None)
        report_slow_ranks(None)
        if dropped:
            self.observer.message(
                f"dropped {format_count(dropped, 'sequence')} that filled no batch at the ends of epochs"
            )

    def _warn_fragmented(self) -> None:
        """Warn once if the allocator of some rank holds much memory that no tensor uses."""
        if self.worker.device.type != "cuda" or self.has_warned:
            return
        ranks = self.worker.votes.count(FRAGMENTED)
        if ranks:
            self.has_warned = True
            self.observer.message(fragmentation_note(ranks))

    def close(self) -> Path | None:
        """Write the last checkpoint and close the records; None if no state is new. Collective.

        Returns:
            Folder of the checkpoint.
        """
        checkpoint = self._write_last()
        if self.keeper is not None:
            self.keeper.close()
        on_rank_zero(self.recorder.close)
        return checkpoint

    def _write_last(self) -> Path | None:
        """Write the checkpoint of the completed steps, and return its folder; None if no state is new."""
        resumed = self.run.resumed
        if self.completed == self.run.completed and (resumed is None or resumed.is_saved):
            return None
        self.observer.status("writing the last checkpoint")
        self._limit_save()
        checkpoint = self.saver.close(self.completed)
        limit("", None)
        return checkpoint

    def summary(self) -> RunSummary | None:
        """Summarise the trained steps on rank 0; None on other ranks, and if no step was trained."""
        if dist.get_rank() != 0 or self.completed == self.run.completed:
            return None
        self.observer.status("comparing with static strategies")
        return self.recorder.summary()

    def progress(self, checkpoint: Path | None) -> RunProgress:
        """Return the position of the run, with the checkpoint to resume from."""
        return RunProgress(
            completed=self.completed,
            num_steps=self.run.config.train.num_steps,
            checkpoint=checkpoint,
            checkpoint_every=self.run.config.checkpoint.every_steps,
            run=self.recorder.directory.path,
            copies=self.run.config.checkpoint.memory_folder if self.keeper and self.keeper.has_whole else "",
        )

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Report the position of the run if the body fails.

        If all ranks fail alike, the checkpoint in progress is completed first, and after a jump that of the
        completed steps is written. If only some do, the others know nothing of it and would not take part.

        Raises:
            HydraulisError: Another rank was lost (code `lost_rank`), and the message has the run's position;
                or the first step after a resume is not finite, and the message names the checkpoint.
        """
        heartbeat = current()
        if heartbeat is not None:
            heartbeat.then = lambda: self._failed_progress().after_failure()
        try:
            yield
        except Exception as error:
            if isinstance(error, HydraulisError) and error.is_everywhere:
                self._complete_checkpoint(error)
            progress = self._failed_progress()
            if isinstance(error, HydraulisError) and error.code == LOST_RANK:
                # The message has the position already.
                raise
            if is_lost(error):
                # Any remaining rank reports this error, and rank 0 may be the lost one.
                raise broken_connection(error, progress.after_failure()) from error
            self.observer.failed(progress)
            is_first = self.completed == self.run.completed
            named = naming_resumed(error, self.run.resumed) if is_first else None
            if named is not None:
                raise named from error
            raise

    def _failed_progress(self) -> RunProgress:
        return self.progress(CheckpointFolder.of_run(self.recorder.directory.path).newest())

    def _complete_checkpoint(self, error: HydraulisError) -> None:
        """Complete the checkpoint in progress, if any; after a jump, write that of the completed steps."""
        self.observer.status("completing the last checkpoint")
        try:
            is_jump = error.code == "training_jumped"
            if is_jump:
                self._write_last()
            self.saver.finish()
            if is_jump and self.keeper is not None:
                # Later copies would undo the return to an earlier checkpoint, which the error advises.
                self.keeper.close()
        except Exception as error:
            # Reported and not raised: the error that failed the run has to reach the user.
            self.observer.message(f"the last checkpoint is not complete: {error}")

    def _limit_step(self) -> None:
        limit("train.step_timeout_s", self.run.config.train.step_timeout_s)

    def _limit_save(self) -> None:
        limit("checkpoint.timeout_s", self.run.config.checkpoint.timeout_s)

    def _iterations(self) -> Iterator[Iteration]:
        run = self.run
        position = StepPosition(run.completed, run.position.group)
        steps = iterations(run.config, run.data.train, self.worker, self.planner, self.stop, position)
        chosen = run.config.train.profile_steps
        if not chosen:
            return steps
        return profiled_steps(steps, run.completed + 1, chosen, self.recorder.directory, dist.get_rank())

    def _record(self, iteration: Iteration) -> None:
        """Write the iteration's records, and let the planner observe its times."""
        self.recorder.add(iteration)
        measured = iteration.result.measured
        if iteration.has_plain_times:
            self.planner.observe(iteration.plan, measured.timelines)
        if not iteration.is_slowed:
            changes = self.planner.observe_ranks(iteration.plan, measured.computed_ms)
            for message in rate_messages(iteration.metrics.step, changes, self.hosts):
                self.observer.message(message)
            self.slow_links.observe(iteration.metrics.step, measured.crossings)
        if self.planner.recalibration is not None:
            self.recorder.recalibrated(self.planner.recalibration.factors)

    def _evaluate(self) -> None:
        with naming_out_of_memory(self.worker, dist.get_rank()):
            evaluation = self.evaluator.after(self.completed)
        if evaluation is not None:
            self.observer.message(f"step {self.completed}: held-out loss {evaluation.describe()}")
            on_rank_zero(partial(self.recorder.evaluated, evaluation))

    def _sample(self) -> None:
        with naming_out_of_memory(self.worker, dist.get_rank()):
            samples = self.text_sampler.after(self.completed)
        if samples is not None:
            for line in samples.describe():
                self.observer.message(line)
            on_rank_zero(partial(self.recorder.sampled, samples))


def _longest(run: OpenedRun) -> int:
    """Return the tokens of the longest sequence of the data and the prompts of samples. Collective."""
    # Other nodes may lack the tokenizer.
    prompt = from_rank_zero(lambda: longest_prompt(run.config))
    return max(run.data.longest, prompt)


def _measured(
    run: OpenedRun,
    worker: Worker,
    schemes: Sequence[Scheme],
    longest: int,
    stop: StopRequest,
    observer: TrainingObserver,
) -> CostProfile | None:
    """Measure the costs of the schemes; None if the run was stopped meanwhile. Collective."""
    config = run.config

    def check(untimed: CostProfile) -> None:
        # Memory is measured first and decides the longest sequence: a refusal need not wait for the times.
        planner = RunPlanner(config.planner, untimed, run.cluster)
        check_longest(planner, config.planner, untimed, longest)

    observer.message(announcement(len(schemes), worker.device, config.planner.profile_seconds))
    observer.status(WARMING_UP)
    limits = measurement_limits(config)
    profile = measured_profile(worker, schemes, limits, observer.measuring, stop.agreed, check)
    if profile is None:
        observer.message("stopped; no step is done yet, so nothing is kept")
    return profile
