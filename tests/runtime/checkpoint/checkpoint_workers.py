"""What the ranks of the tests of checkpoints do."""

import threading
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis import Cluster
from hydraulis.config.output import CheckpointConfig
from hydraulis.data.open import make_datasets
from hydraulis.errors import HydraulisError
from hydraulis.runtime.agreement.step_sum import Votes
from hydraulis.runtime.checkpoint import saver as saver_module
from hydraulis.runtime.checkpoint.description import Description
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.manifest import ShardRecord
from hydraulis.runtime.checkpoint.position import DataPosition
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest
from hydraulis.runtime.checkpoint.resume import restore_moments
from hydraulis.runtime.checkpoint.saver import CheckpointSaver
from hydraulis.runtime.checkpoint.shard import write_durably, write_shard
from hydraulis.runtime.checkpoint.shared import check_shared
from hydraulis.runtime.ranks.rank_zero import on_rank_zero_alone
from hydraulis.runtime.state.optimizer_shard import OptimizerShard, ShardPlacement
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters, ParameterValues
from runtime.gathered import gather
from runtime.stepped import step, tally
from runtime.tiny import OPTIMIZER, SEED, made_up_corpus, run_config
from small_model import small_config

State = dict[str, dict[str, Tensor]]


def make_shard(values: ParameterValues | None = None, ranks_per_node: int | None = None) -> OptimizerShard:
    parameters = ModelParameters.from_config(small_config())
    drawn = InitialValues(parameters, SEED, torch.float64)
    ranks = dist.get_world_size()
    place = ShardPlacement(cluster=Cluster(gpus=ranks, gpus_per_node=ranks_per_node or ranks))
    return OptimizerShard(parameters, OPTIMIZER, torch.float64, values or drawn, 4, place)


def make_saver(folder: Path, shard: OptimizerShard, **config: Any) -> CheckpointSaver:
    run = run_config(4, ["2x<1>"])
    data = make_datasets(run.data, [[made_up_corpus(256)]]).train
    description = Description(run, DataPosition(run, data), torch.float64)
    return CheckpointSaver(CheckpointFolder(folder), CheckpointConfig(**config), shard, description, Votes())


def gathered(shard: OptimizerShard) -> State | None:
    whole = {kind: gather(shard, buffer.flat) for kind, buffer in shard.buffers().items()}
    return {kind: values for kind, values in whole.items() if values is not None} or None


class Loaded(NamedTuple):
    """What a rank wrote or read, and has after one more step; whole on rank 0 alone."""

    state: State | None
    stepped: State | None


def save(folder: Path, ranks_per_node: int) -> Loaded:
    """Make two steps with a gradient of twice the parameters, leave a checkpoint, and make a third."""
    shard = make_shard(ranks_per_node=ranks_per_node)
    for _ in range(2):
        shard.gradient.copy_(2 * shard.master)
        step(shard)
    make_saver(folder, shard).close(2)
    return _one_more(shard)


def load(folder: Path) -> Loaded:
    checkpoint = CheckpointFolder(folder).step(2)
    manifest = read_manifest(checkpoint)
    with CheckpointReader(checkpoint, manifest) as reader:
        shard = make_shard(reader)
        restore_moments(reader, shard)
    shard.optimizer.resume(2)
    return _one_more(shard)


def _one_more(shard: OptimizerShard) -> Loaded:
    state = gathered(shard)
    shard.gradient.copy_(2 * shard.master)
    step(shard)
    return Loaded(state, gathered(shard))


class Written(NamedTuple):
    """Which checkpoints were complete, after which call."""

    while_writing: list[str]
    at_the_next_step: list[str]
    after_another: list[str]
    at_the_end: list[str]
    values: list[bool]
    failure: str
    after_failure: list[str]


def write_slowly(folder: Path) -> Written:
    """Change the state while rank 1's writer is held up; then let another one fail on rank 1."""
    shard = make_shard()
    saver = make_saver(folder, shard, every_steps=2, keep=2)
    released = threading.Event()

    def held_up(*arguments: Any) -> ShardRecord:
        if dist.get_rank() == 1:
            released.wait()
        return write_shard(*arguments)

    def complete() -> list[str]:
        dist.barrier()
        return [path.name for path in CheckpointFolder(folder).complete()]

    setattr(saver_module, "write_shard", held_up)  # noqa: B010
    shard.master.fill_(2.0)
    saver.after(2)
    shard.master.fill_(3.0)
    tally(saver._votes)
    saver.after(3)
    while_writing = complete()
    released.set()
    saver._pending.written.result()  # type: ignore[union-attr]
    dist.barrier()
    tally(saver._votes)
    saver.after(5)
    at_the_next_step = complete()
    saver.after(6)
    # The one after 6 is waited for, since only one is written at a time.
    saver.after(8)
    after_another = complete()
    saver.close(8)
    at_the_end = complete()
    values = [_all_are(folder, step, 3.0) for step in (6, 8)]
    failure = _failure(saver)
    return Written(while_writing, at_the_next_step, after_another, at_the_end, values, failure, complete())


def first_copy(folder: Path) -> bool:
    """Change the state as soon as a checkpoint is begun; say if the copy is of before."""
    shard = make_shard()
    shard.master.fill_(2.0)
    saver = make_saver(folder, shard, every_steps=1)
    saver.after(1)
    shard.master.fill_(3.0)
    saver.close(1)
    return _all_are(folder, 1, 2.0)


def fail_to_record(folder: Path) -> tuple[str, list[str], list[str]]:
    """Fail to record a step once the checkpoint before it is written, and complete the checkpoint then.

    Returns:
        Code of the error that ends the step, and whether it is everywhere; the complete checkpoints at the
        end of the step, and those after the completion.
    """
    saver = make_saver(folder, make_shard(), every_steps=1)
    saver.after(1)
    saver._pending.written.result()  # type: ignore[union-attr]
    dist.barrier()
    tally(saver._votes)

    def record() -> None:
        message = "no space left"
        raise HydraulisError(message, code="file_unwritable")

    on_rank_zero_alone(record)
    code = ""
    try:
        saver.after(2)
    except HydraulisError as error:
        code = f"{error.code} {error.is_everywhere}"
    ended = [path.name for path in CheckpointFolder(folder).complete()]
    saver.finish()
    dist.barrier()
    return code, ended, [path.name for path in CheckpointFolder(folder).complete()]


def _failure(saver: CheckpointSaver) -> str:
    def fail(file: Path, _tensors: Any) -> ShardRecord:
        def full(_path: Path) -> None:
            message = "no space left"
            raise OSError(message)

        if dist.get_rank() == 1:
            write_durably(file, full)
        return ShardRecord(file=file.name, bytes=0, digest="")

    setattr(saver_module, "write_shard", fail)  # noqa: B010
    try:
        saver.close(9)
    except HydraulisError as error:
        return f"{error.code}: {error}"
    return ""


def _all_are(folder: Path, step: int, value: float) -> bool:
    checkpoint = CheckpointFolder(folder).step(step)
    manifest = read_manifest(checkpoint)
    with CheckpointReader(checkpoint, manifest) as reader:
        return all(
            reader.read(record.name, 0, record.intervals[-1][2]).eq(value).all()
            for record in manifest.parameters
        )


def look_at(folders: list[Path]) -> list[str]:
    """Give each rank a folder of its own to look at: only if it is one and the same is that well."""
    results = []
    for mine in (folders[0], folders[dist.get_rank()]):
        # Rank 1 looks for rank 0's file by its name in a folder of its own.
        setattr(Path, "is_file", _in_own(mine))  # noqa: B010
        try:
            check_shared(folders[0], patience_s=0.2)
            results.append("")
        except HydraulisError as error:
            results.append(f"{error.code}: {error}")
    return results


def _in_own(folder: Path) -> Any:
    return lambda path: (folder / path.name).exists()
