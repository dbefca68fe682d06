"""Looks on all nodes for copies of the state from which a run can continue."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist

from hydraulis._core import OptimizerShards
from hydraulis.config.layered.table import from_table
from hydraulis.runtime.checkpoint.folder import CheckpointFolder, step_of
from hydraulis.runtime.checkpoint.manifest import DataCursor, Manifest
from hydraulis.runtime.checkpoint.reader import StateValues
from hydraulis.runtime.checkpoint.resume import ResumedRun
from hydraulis.runtime.ranks import host
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.recovery.copy_file import is_whole, open_copy
from hydraulis.runtime.recovery.exchanged_values import exchange_values
from hydraulis.runtime.recovery.keeper import DATA, MANIFEST, STEP
from hydraulis.runtime.recovery.memory_folder import CopyName, MemoryFolder
from hydraulis.runtime.recovery.ownership import Ownership, why_refused
from hydraulis.runtime.recovery.run_start import named_starts
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.text.documents import parse_json
from hydraulis.text.values import format_count

# Shards that a message lists.
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class RunInMemory(ResumedRun):
    """A run to resume from copies in the memory of the nodes.

    Attributes:
        folder: Folder of the copies on this node.
        sources: Copies by the rank that may read them.
    """

    folder: MemoryFolder
    sources: Mapping[int, Sequence[CopyName]]

    def __str__(self) -> str:
        """Describe the state to continue from, as the end of a sentence."""
        return f"{ResumedRun.__str__(self)}, from copies in {self.folder.base}"

    def nothing_left(self, num_steps: int) -> str | None:  # noqa: ARG002 - copies become a checkpoint first
        """Return None: a run without steps left has its last checkpoint to write."""
        return None

    @property
    def is_saved(self) -> bool:
        """Whether the state is a checkpoint on the disk."""
        return False

    def values(
        self, parameters: ModelParameters, layout: OptimizerShards
    ) -> AbstractContextManager[StateValues]:
        """Exchange the state between the ranks, so that each has its own shard. Collective."""
        return nullcontext(exchange_values(self.folder, self.manifest, self.sources, parameters, layout))


def find_in_memory(
    find_run: Callable[[], Path | None], base: str, note: Callable[[str], None]
) -> RunInMemory | None:
    """Find the newest whole state in the memory of the nodes. Collective.

    Args:
        find_run: Function that returns the folder of the run to resume, None for a new run; called on rank 0.
        base: Value of `checkpoint.memory_folder`; empty for no copies.
        note: Receiver of a message about copies that are not whole.

    Returns:
        The run; None without a whole state that is newer than the newest checkpoint.

    Raises:
        HydraulisError: A copy was removed or damaged since it was found (code `checkpoint_missing`); on every
            rank.
    """
    if not base:
        return None
    named = from_rank_zero(lambda: _named(find_run()))
    if not named:
        return None
    folder, *starts = named
    saved = from_rank_zero(lambda: _newest_checkpoint(Path(folder)))
    missing = ""
    for start in starts:
        memory = MemoryFolder(Path(base), start)
        missing = why_refused(host.all_gather_objects(Ownership.of(memory.owner(), Path(folder))))
        if missing:
            continue
        step, missing, sources = _find_whole(memory, saved, note)
        if step is not None:
            # Without sources the newest checkpoint is as new.
            return (
                RunInMemory(Path(folder), memory.path, _manifest(memory, sources, step), memory, sources)
                if sources
                else None
            )
    note(f"the copies in {base} do not continue the run: {missing}")
    return None


def _find_whole(
    memory: MemoryFolder, saved: int, note: Callable[[str], None]
) -> tuple[int | None, str, Mapping[int, Sequence[CopyName]]]:
    """Find the newest step of a start with a copy of every shard, and verify its copies. Collective.

    Args:
        memory: Folder of the copies on this node.
        saved: Step of the run's newest checkpoint.
        note: Receiver of a message about a damaged copy.

    Returns:
        The step, None without one; the reason then; and the verified copies by the rank that may read them,
        none if the checkpoint is as new.
    """
    damaged: set[CopyName] = set()
    while True:
        by_rank = host.all_gather_objects([copy for copy in memory.copies() if copy not in damaged])
        step, missing = newest_whole(by_rank)
        if step is None or step <= saved:
            return step, missing, {}
        sources = choose_sources(by_rank, step)
        own = choose_verifiers(sources).get(dist.get_rank(), ())
        found = {
            copy
            for copies in host.all_gather_objects([one for one in own if not is_whole(memory.file(one), one)])
            for copy in copies
        }
        if not found:
            return step, "", sources
        names = ", ".join(sorted(map(str, found))[:_MOST_NAMED])
        note(
            f"{format_count(len(found), 'damaged copy', 'damaged copies')} in {memory.path} left out: {names}"
        )
        damaged |= found


def newest_whole(by_rank: Sequence[Sequence[CopyName]]) -> tuple[int | None, str]:
    """Return the newest step with a copy of every shard, and the reason if there is none.

    Args:
        by_rank: Files that each rank sees.
    """
    copies = {copy for of_rank in by_rank for copy in of_rank}
    if not copies:
        return None, "no node has any"
    world_size = next(iter(copies)).world_size
    shards: defaultdict[int | None, set[int]] = defaultdict(set)
    for copy in copies:
        shards[copy.step].add(copy.shard)
    every = set(range(world_size))
    steps = sorted((step for step in shards if step is not None), reverse=True)
    whole = [step for step in steps if shards[step] == every]
    if whole and shards[None] == every:
        return whole[0], ""
    lost = sorted(every - (shards[steps[0]] & shards[None] if steps else shards[None]))
    named = ", ".join(map(str, lost[:_MOST_NAMED])) + (" and others" if len(lost) > _MOST_NAMED else "")
    return None, f"shard {named} of {world_size} and its twin are gone or damaged"


def choose_sources(by_rank: Sequence[Sequence[CopyName]], step: int) -> Mapping[int, Sequence[CopyName]]:
    """Choose a copy of each shard that a rank sees, the same one on all ranks of a node.

    Args:
        by_rank: Files that each rank sees, with a copy of every shard of the step on some rank.
        step: Step of the copies.

    Returns:
        The copies of the step, and of the frozen parameters, by the rank that may read them.
    """
    sources = {}
    for rank, copies in enumerate(by_rank):
        chosen: dict[tuple[int | None, int], CopyName] = {}
        for copy in sorted(copies, key=str):
            if copy.step in (step, None):
                chosen.setdefault((copy.step, copy.shard), copy)
        if chosen:
            sources[rank] = list(chosen.values())
    return sources


def choose_verifiers(sources: Mapping[int, Sequence[CopyName]]) -> Mapping[int, Sequence[CopyName]]:
    """Choose a rank that verifies each copy, in turn among those that see it."""
    seen: defaultdict[CopyName, list[int]] = defaultdict(list)
    for rank, copies in sources.items():
        for copy in copies:
            seen[copy].append(rank)
    verifiers: defaultdict[int, list[CopyName]] = defaultdict(list)
    for copy, ranks in seen.items():
        verifiers[ranks[copy.shard % len(ranks)]].append(copy)
    return dict(verifiers)


def _named(run: Path | None) -> list[str]:
    """Return the run's folder and the starts whose copies continue it; empty without such a start."""
    starts = [] if run is None else named_starts(run)
    return [str(run), *starts] if starts else []


def _newest_checkpoint(run: Path) -> int:
    newest = CheckpointFolder.of_run(run).newest()
    return 0 if newest is None else step_of(newest) or 0


def _manifest(folder: MemoryFolder, sources: Mapping[int, Sequence[CopyName]], step: int) -> Manifest:
    """Read the manifest of a step from one of its files. Collective."""
    reader = min(rank for rank, copies in sources.items() if any(copy.step == step for copy in copies))

    def found() -> dict[str, str]:
        if dist.get_rank() != reader:
            return {}
        copy = next(copy for copy in sources[reader] if copy.step == step)
        with open_copy(folder.file(copy)) as file:
            return dict(file.metadata())

    metadata = host.all_gather_objects(on_every_rank(found))[reader]
    manifest = Manifest.from_json(metadata[MANIFEST], str(folder.path))
    cursor = from_table(DataCursor, parse_json(metadata[DATA]), "data")
    return replace(manifest, step=int(metadata[STEP]), data=cursor)
