"""Functions that the tests of recovery run on ranks."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from helpers import at_least
from hydraulis import Strategy
from hydraulis._core import OptimizerShards
from hydraulis.config.model import ModelConfig
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.data.open import make_datasets
from hydraulis.data.sampling.batch_group import BatchGroup
from hydraulis.errors import HydraulisError
from hydraulis.planner.profile_document import with_schemes
from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.resume import restore_moments
from hydraulis.runtime.checkpoint.shard import write_tensors
from hydraulis.runtime.ranks import host
from hydraulis.runtime.recovery import copy_file, survey
from hydraulis.runtime.recovery.keeper import StateKeeper
from hydraulis.runtime.recovery.memory_folder import MemoryFolder
from hydraulis.runtime.recovery.run_start import RunStart, named_starts
from hydraulis.runtime.recovery.shard_part import ShardPart, own_buffers
from hydraulis.runtime.recovery.survey import find_in_memory
from hydraulis.runtime.recovery.twins import TwinExchange
from hydraulis.runtime.state.optimizer_shard import MASTER, OptimizerShard
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.worker import Worker
from profiles import made_up_profile
from runtime.gathered import gather
from runtime.tiny import made_up_corpus, run_config, train_config
from runtime.worker_workers import CAPS, SEED, Batch, _step

# The steps of a test are within one group.
GROUP = BatchGroup(first_step=1, last_step=9, moves=((2, 0, 4),))


class Setting(NamedTuple):
    """The worker of a test.

    Attributes:
        config: Model.
        optimizer: Optimizer.
        schemes: Schemes of the run.
        frozen: Patterns of frozen parameters.
        dtype: Type of the model.
    """

    config: ModelConfig
    optimizer: OptimizerConfig
    schemes: Sequence[str]
    frozen: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float64

    def worker(self, values: Any = None) -> Worker:
        schemes = sorted({scheme for text in self.schemes for scheme in Strategy(text).schemes})
        settings = train_config(dtype=self.dtype, seed=SEED, frozen=self.frozen)
        return Worker(self.config, self.optimizer, settings, schemes=schemes, values=values)


def make_keeper(worker: Worker, run: Path, base: Path, messages: list[str]) -> StateKeeper:
    config = run_config(9, ["1x<1>"])
    data = make_datasets(config.data, [[made_up_corpus(256)]]).train
    settings = train_config(dtype=worker.local_shard.parameter.dtype)
    config = dataclasses.replace(config, train=settings)
    position = DataPosition(config, data)
    position.group = GROUP
    description = Description(config, position, worker.optimizer_shard.master.dtype)
    twins = TwinExchange.create(worker.cluster, timedelta(seconds=60))
    start = RunStart.begin(run, base, None)
    return StateKeeper(start, worker.optimizer_shard, description, twins, worker.votes, messages.append)


def state_of(shard: OptimizerShard) -> dict[str, Tensor]:
    """Return this rank's shard by the names of a checkpoint."""
    found: dict[str, Tensor] = {}
    for trained in (True, False):
        part = ShardPart.of(shard, dist.get_rank(), trained=trained)
        own = own_buffers(shard, trained=trained)
        found |= {name: tensor.clone() for name, tensor in part.tensors(own).items()}
    return found


def files_of(folder: MemoryFolder, step: int, shard: int, holder: int) -> dict[str, Tensor]:
    """Return the tensors of a shard that a rank wrote."""
    found: dict[str, Tensor] = {}
    for copy in folder.copies():
        if copy.step in (None, step) and (copy.shard, copy.holder) == (shard, holder):
            with safe_open(folder.file(copy), framework="pt") as file:
                found |= {name: file.get_tensor(name) for name in list(file.keys())}
    return found


class Kept(NamedTuple):
    """One rank's copies after each step.

    Attributes:
        own: Whether the rank's file equals its shard to the bit.
        twin: Whether the twin that this rank keeps equals its source's shard; None without twins.
        steps: Steps of the rank's files.
        moved: Whether the step changed the shard.
    """

    own: bool
    twin: bool | None
    steps: list[int]
    moved: bool


def keep_steps(
    run: Path, base: Path, setting: Setting, steps: Sequence[tuple[str, Batch]]
) -> tuple[list[Kept], int, list[str]]:
    """Train each batch under its strategy, and compare the files with the shards after each copy.

    Returns:
        The comparisons, the bytes that were announced against those on the disk, and the files at the end.
    """
    worker = setting.worker()
    keeper = make_keeper(worker, run, base, [])
    profile = with_schemes(made_up_profile(CAPS), worker.schemes)
    folder, shard, rank = keeper._start.folder, worker.optimizer_shard, dist.get_rank()
    kept: list[Kept] = []
    before = state_of(shard)
    most = 0
    for number, (strategy, batch) in enumerate(steps, 1):
        _step(worker, profile, strategy, batch)
        keeper.after(number)
        assert keeper._pending is not None
        keeper._pending.call.ended.wait()
        now = state_of(shard)
        every: list[dict[str, Tensor]] = [{}] * dist.get_world_size()
        dist.all_gather_object(every, now)
        twin = None
        if keeper._twins is not None:
            source = keeper._twins.source
            twin = are_equal(files_of(folder, number, source, rank), every[source])
        own = [copy for copy in folder.copies() if copy.holder == rank]
        most = max(most, sum(tensor_bytes(folder.file(copy)) for copy in own))
        kept.append(
            Kept(
                own=are_equal(files_of(folder, number, rank, rank), now),
                twin=twin,
                steps=sorted({copy.step for copy in own if copy.step is not None}),
                moved=not are_equal(before, now),
            )
        )
        before = now
        assert named_starts(run) == [keeper._start.folder.start]
        # The first step's copy is whole once the second step has ended.
        assert keeper.has_whole == (number > 1)
        dist.barrier()
    announced = keeper.bytes
    keeper.close()
    assert not keeper.has_whole
    dist.barrier()
    assert named_starts(run) == []
    return kept, most - announced, sorted(path.name for path in base.iterdir())


def tensor_bytes(file: Path) -> int:
    """Return the size of a file without its header, whose length is in the first 8 bytes."""
    content = file.read_bytes()
    return len(content) - 8 - int.from_bytes(content[:8], "little")


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Whole(NamedTuple):
    """The state of all ranks.

    Attributes:
        state: Parameters and moments by name, on rank 0 alone.
        messages: Messages of this rank.
        step: Completed iterations; None for no state.
        group: Group of the step.
        received: Elements that other ranks sent to this one.
    """

    state: dict[str, dict[str, Tensor] | None]
    messages: list[str]
    step: int | None
    group: BatchGroup | None = None
    received: int = 0


def keep_and_end(run: Path, base: Path, setting: Setting, steps: Sequence[tuple[str, Batch]]) -> Whole:
    """Train, copy after each step, and end as if killed: the files stay."""
    worker = setting.worker()
    keeper = make_keeper(worker, run, base, [])
    profile = with_schemes(made_up_profile(CAPS), worker.schemes)
    for number, (strategy, batch) in enumerate(steps, 1):
        _step(worker, profile, strategy, batch)
        keeper.after(number)
        assert keeper._pending is not None
        keeper._pending.call.ended.wait()
        dist.barrier()
    return whole(worker.optimizer_shard, [], len(steps))


def whole(shard: OptimizerShard, messages: list[str], step: int | None) -> Whole:
    # The frozen parameters come with the master parameters.
    flats = {MASTER: shard.master, **shard.optimizer.moments}
    state = {name: gather(shard, flat) for name, flat in flats.items()}
    return Whole(state, messages, step)


def recover(
    run: Path, base: Path, setting: Setting, node: int | None = None, blind: int | None = None
) -> Whole:
    """Look for the state in memory, and build a worker from it on the ranks that there are now.

    Args:
        run: The run's folder.
        base: Folder of the copies.
        setting: The worker.
        node: Ranks of a pretended node whose memory this rank sees alone; None for all files.
        blind: Rank that sees no file; None for none.
    """
    messages: list[str] = []
    if node is not None:
        _see_own_node_only(node)
    if blind == dist.get_rank():
        setattr(MemoryFolder, "copies", lambda _: [])  # noqa: B010
    kept = find_in_memory(lambda: run, str(base), messages.append)
    if kept is None:
        return Whole({}, messages, None)
    plain = setting.worker()
    parameters = ModelParameters.from_config(setting.config, setting.frozen)
    layout = OptimizerShards(parameters.table, plain.cluster, plain.schemes)
    with _counted_elements() as received:
        exchanged = kept.values(parameters, layout)
    with exchanged as values:
        worker = setting.worker(values)
        restore_moments(values, worker.optimizer_shard)
    recovered = whole(worker.optimizer_shard, messages, kept.manifest.step)
    return recovered._replace(group=kept.manifest.data.group, received=sum(received))


def lose_copies(run: Path, base: Path, setting: Setting, when: str) -> tuple[str, str]:
    """Remove the copies that one rank or one node reads after they were found; return code and message.

    Args:
        run: The run's folder.
        base: Folder of the copies.
        setting: The worker.
        when: `manifest` to remove them before their manifest is read, `values` before the exchange.
    """
    # Rank 0 alone reads the manifest. Of the values only ranks 2 and 3 miss theirs.
    pattern = {"manifest": "step-*", "values": "*.by-0000[23].*"}[when]

    def remove(*_: object) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            for path in at_least(4, base.glob(f"*/{pattern}")):
                path.unlink()
        dist.barrier()

    _see_own_node_only(2)
    read = survey._manifest

    def read_later(*arguments: Any) -> Any:
        remove()
        return read(*arguments)

    if when == "manifest":
        setattr(survey, "_manifest", read_later)  # noqa: B010
    try:
        kept = find_in_memory(lambda: run, str(base), lambda _: None)
        assert kept is not None
        remove()
        plain = setting.worker()
        parameters = ModelParameters.from_config(setting.config, setting.frozen)
        kept.values(parameters, OptimizerShards(parameters.table, plain.cluster, plain.schemes))
    except HydraulisError as error:
        return error.code, str(error)
    return "", ""


@contextmanager
def _counted_elements() -> Iterator[list[int]]:
    """Count the elements that other ranks send to this one."""
    counts_of: list[int] = []
    exchange = dist.all_to_all_single

    def counted(
        received: Tensor, sent: Tensor, counts: list[int], sizes: list[int], group: dist.ProcessGroup | None
    ) -> Any:
        # On several nodes of several ranks, WORLD of CUDA ranks has no backend for host memory.
        assert (group is None) == (not host.has_node_groups())
        counts_of.append(sum(counts) - counts[dist.get_rank(group)])
        return exchange(received, sent, counts, sizes, group=group)

    setattr(dist, "all_to_all_single", counted)  # noqa: B010
    yield counts_of
    setattr(dist, "all_to_all_single", exchange)  # noqa: B010


def _see_own_node_only(size: int) -> None:
    """Hide the files that ranks of another pretended node wrote."""
    copies, node = MemoryFolder.copies, dist.get_rank() // size

    def own(folder: MemoryFolder) -> Any:
        return [copy for copy in copies(folder) if copy.holder // size == node]

    setattr(MemoryFolder, "copies", own)  # noqa: B010


def fail_to_write(run: Path, base: Path, setting: Setting, steps: Sequence[tuple[str, Batch]]) -> Any:
    """Refuse the second copy on rank 1, and train on."""
    worker = setting.worker()
    messages: list[str] = []
    keeper = make_keeper(worker, run, base, messages)
    profile = with_schemes(made_up_profile(CAPS), worker.schemes)

    def refuse(path: Path, tensors: Any, metadata: Any) -> None:
        if dist.get_rank() == 1 and "step-00000002" in path.name:
            message = "no space left on device"
            raise OSError(message)
        write_tensors(path, tensors, metadata)

    setattr(copy_file, "write_tensors", refuse)  # noqa: B010
    for number, (strategy, batch) in enumerate(steps, 1):
        _step(worker, profile, strategy, batch)
        keeper.after(number)
        assert keeper._pending is not None
        keeper._pending.call.ended.wait()
    dist.barrier()
    assert not keeper.has_whole
    return messages, [path.name for path in base.iterdir()], named_starts(run)
