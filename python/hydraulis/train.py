"""`torchrun -m hydraulis.train RUN.toml`: trains, start to end."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import safetensors.torch
import torch.distributed as dist

from hydraulis._core import Cluster, CostProfile, Planner, Scheme, Strategy
from hydraulis.cli.display import TrainingDisplay
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_REFUSED, report
from hydraulis.config.run import RunConfig, load, to_dict
from hydraulis.data.corpus import Corpus
from hydraulis.data.stdlib import StandardLibrary
from hydraulis.errors import HydraulisError, InfeasibleError, InvalidInputError
from hydraulis.model.decoder import checkpoint_name
from hydraulis.parallel.context.degree import check_context_degree
from hydraulis.planner.profile import load_profile
from hydraulis.planner.shape import shape_of
from hydraulis.planner.static import StaticComparison
from hydraulis.profile.measure import MeasurementLimits, measure_profile
from hydraulis.runtime.distributed import joined
from hydraulis.runtime.loop import iterations
from hydraulis.runtime.rank_zero import corpus_from_rank_zero, from_rank_zero, on_rank_zero
from hydraulis.runtime.recorder import Recorder
from hydraulis.runtime.run_directory import RunDirectory
from hydraulis.runtime.stop import StopRequest
from hydraulis.runtime.worker import Worker

REFUSAL_TIMEOUT = timedelta(seconds=60)
MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Be one rank of a training run.

    Returns:
        0; 2 when the configuration or the data is refused; 130 when the run was interrupted, after the step
        at hand.
    """
    parser = argparse.ArgumentParser(
        prog="hydraulis.train", description="Train, planning every iteration anew."
    )
    parser.add_argument("config", metavar="RUN.toml", help="the run's configuration")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override a value of the configuration; may be repeated",
    )
    parsed = parser.parse_args(arguments)
    try:
        config = _config(parsed.config, parsed.set)
        with StopRequest() as stop, joined(timedelta(seconds=config.train.timeout_s)) as rank:
            return train(config, rank, stop)
    except HydraulisError as error:
        # Every rank raises the same error: one of them reports it.
        if os.environ.get("RANK", "0") == "0":
            report("hydraulis.train", error)
        return EXIT_REFUSED


def _config(path: str, overrides: Sequence[str]) -> RunConfig:
    """Read the configuration; if it is refused, no rank leaves before all have come."""
    try:
        return load(path, overrides)
    except HydraulisError:
        # torchrun ends every rank once one has left: rank 0 too, if it was slower and has yet to report.
        with joined(REFUSAL_TIMEOUT):
            raise


def train(config: RunConfig, rank: int, stop: StopRequest) -> int:
    """Run the configuration as one rank of a process group; give the exit code."""
    with TrainingDisplay(rank, config.train.steps) as display:
        # Rank 0's word: nodes on which different numbers of ranks run must not plan for different clusters.
        gpus_per_node = int(from_rank_zero(lambda: os.environ["LOCAL_WORLD_SIZE"]))
        cluster = Cluster(gpus=dist.get_world_size(), gpus_per_node=gpus_per_node)
        strategies = [Strategy(text) for text in config.planner.strategies]
        for strategy in strategies:
            strategy.place(cluster)
        display.note("reading Python's standard library")
        corpus = corpus_from_rank_zero(lambda: StandardLibrary.load(config.data.max_tokens))
        display.note(_describe(corpus))
        worker = _worker(config, strategies)
        profile = _profile(config, worker, strategies, display, stop)
        if profile is None:
            display.note("stopped before the first iteration; nothing was written")
            return EXIT_INTERRUPTED
        planner = Planner(profile, cluster, strategies=[str(strategy) for strategy in strategies])
        _check_longest(corpus, planner)
        recorder = _recorder(config, profile, cluster, planner, corpus)
        completed = 0
        for iteration in iterations(config, corpus, worker, planner, stop):
            completed += 1
            display.step(iteration.metrics)
            on_rank_zero(partial(recorder.add, iteration))
        if completed:
            _save(worker, recorder)
    if rank == 0 and completed:
        display.summary(recorder.summary())
    return 0 if completed == config.train.steps else EXIT_INTERRUPTED


def _describe(corpus: Corpus) -> str:
    facts = corpus.describe()
    return (
        f"corpus: {facts['documents']:,} documents, {facts['tokens']:,} tokens; "
        f"median {facts['median']:,.0f}, 99 % up to {facts['p99']:,.0f}, longest {facts['longest']:,}; "
        f"{facts['cut']} cut, {facts['skipped_files']} files skipped; "
        f"unigram entropy {facts['unigram_entropy_nats']:.2f} nats; fingerprint {facts['fingerprint']}"
    )


def _worker(config: RunConfig, strategies: Sequence[Strategy]) -> Worker:
    return Worker(config.model, config.optimizer, config.train, schemes=_schemes(strategies))


def _profile(
    config: RunConfig,
    worker: Worker,
    strategies: Sequence[Strategy],
    display: TrainingDisplay,
    stop: StopRequest,
) -> CostProfile | None:
    """Read the profile that the configuration names, or measure one; None if that was stopped."""
    path = config.planner.profile
    schemes = _schemes(strategies)
    if path:
        profile = CostProfile.from_json(from_rank_zero(lambda: load_profile(path).to_json()))
        _check_workload(config, profile)
        _check_checkpointing(config, profile)
        for scheme in schemes:
            check_context_degree(config.model, scheme, profile.context(scheme))
        return profile
    limits = MeasurementLimits(
        context=config.planner.context,
        memory_bytes=config.planner.memory_mib * MIB,
        longest=config.data.max_tokens,
        micro_batch_tokens=config.data.tokens_per_batch,
        seconds=config.planner.profile_seconds,
    )
    display.note(f"measuring what each scheme costs, about {limits.seconds:.0f} s")
    return measure_profile(worker, schemes, limits, display.measuring, stop.agreed)


def _check_workload(config: RunConfig, profile: CostProfile) -> None:
    """Refuse a profile of another model or type (code `profile_differs`); one that does not say is taken."""
    differing = profile.model and profile.model.difference(shape_of(config.model))
    if profile.dtype not in (None, config.train.dtype):
        differing = ("dtype", str(profile.dtype), config.train.dtype)
    if differing:
        name, measured, wanted = differing
        message = (
            f"profile '{profile.name}' of planner.profile = '{config.planner.profile}' was measured with "
            f"{name} {measured or 'none'}, and the run has {wanted or 'none'}; measure a profile of this run "
            "(hydraulis profile RUN.toml), or leave planner.profile out"
        )
        raise InvalidInputError(message, code="profile_differs")


def _check_checkpointing(config: RunConfig, profile: CostProfile) -> None:
    """Refuse a profile whose times and caps are those of another kind (code `checkpointing_differs`)."""
    if profile.checkpointing != config.train.checkpointing:
        message = (
            f"profile '{profile.name}' of planner.profile = '{config.planner.profile}' was measured under "
            f"checkpointing '{profile.checkpointing}', and train.checkpointing is "
            f"'{config.train.checkpointing}'; set train.checkpointing = \"{profile.checkpointing}\", or "
            "measure a profile under the other kind"
        )
        raise InvalidInputError(message, code="checkpointing_differs")


def _schemes(strategies: Sequence[Strategy]) -> list[Scheme]:
    return sorted({scheme for strategy in strategies for scheme in strategy.schemes})


def _check_longest(corpus: Corpus, planner: Planner) -> None:
    longest, limit = int(corpus.lengths.max()), planner.longest_admitted
    if longest > limit:
        message = (
            f"the longest document has {longest} tokens, and no strategy admits more than {limit}: lower "
            "data.max_tokens, raise planner.memory_mib, or add a wider strategy to planner.strategies"
        )
        raise InfeasibleError(message, code="document_too_long")


def _recorder(
    config: RunConfig, profile: CostProfile, cluster: Cluster, planner: Planner, corpus: Corpus
) -> Recorder:
    """Make the run's folder and its first files. Collective; rank 0 writes."""

    def create() -> str:
        directory = RunDirectory.create(config.output.directory)
        directory.write("config.json", json.dumps(to_dict(config), indent=2) + "\n")
        directory.write("corpus.json", json.dumps(corpus.describe(), indent=2) + "\n")
        directory.write("profile.json", profile.to_json() + "\n")
        return str(directory.path)

    directory = RunDirectory(Path(from_rank_zero(create)))
    static = StaticComparison.over(profile, cluster, planner.strategies, int(corpus.lengths.max()))
    traced = config.train.trace_step
    # A shorter run than the configuration was written for still leaves a trace.
    return Recorder(
        directory, planner, static, None if traced is None else min(traced, config.train.steps - 1)
    )


def _save(worker: Worker, recorder: Recorder) -> None:
    """Write the trained parameters under the names of Hugging Face. Collective; rank 0 writes."""
    gathered = worker.home.gather(worker.home.master) or {}
    parameters = {checkpoint_name(name): value for name, value in gathered.items()}
    on_rank_zero(lambda: recorder.save(safetensors.torch.save(parameters)))


if __name__ == "__main__":
    sys.exit(main())
