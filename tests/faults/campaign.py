"""Faults in a run of four ranks, each of which must cost no completed step: `make faults` prints the table.

Every case trains 8 steps. The run starts again after each loss of ranks, and continues from the copies of the
state in memory; a run that ends by another error is resumed. Its losses and gradient norms must equal those
of an undisturbed run to the bit, and no file in memory may be left.

HYDRAULIS_TEST_DEVICE=cuda trains on the CUDA devices at hand, which the ranks share if there are too few.
"""

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from faults.forked_launcher import Ended, launch, read_metrics
from faults.injection import STRIKE, Fault
from hydraulis.runtime.checkpoint.folder import CheckpointFolder, step_of
from hydraulis.runtime.records.run_directory import MEMORY
from profiles import made_up_profile
from ranks import kind_of_ranks
from train.small_run import CONFIG

RANKS, STEPS = 4, 8
# With pipelines, tensor and context parallelism, in turn by the lengths of each batch.
STRATEGIES = ("4x<1>", "2x<tp2>", "1x<pp2>+2x<1>", "1x<tp4>")
CAPS = {"<1>": 400, "<tp2>": 512, "<pp2>": 400, "<tp4>": 1024}
# Seconds without a sign of life, so that a stopped rank is found.
SILENCE_S = 3.0

Chain = Sequence[Sequence[Fault]]
"""Faults of each start."""


class Case(NamedTuple):
    """A run with faults.

    Attributes:
        chain: Faults of each start.
        code: Code of the error that ends the run; empty if the run reaches its last step.
        restarts: Number of restarts.
        ranks_per_node: Number of ranks of each pretended node.
        said: Parts of rank 0's messages.
        resumed: Faults of the run that is resumed after the error.
        grace_s: Seconds that the launcher gives the ranks after the first failure.
    """

    chain: Chain
    code: str | int = 0
    restarts: int = 0
    ranks_per_node: int = RANKS
    said: Sequence[str] = ()
    resumed: Sequence[Fault] = ()
    grace_s: float = 10.0


def lost(*chain: Sequence[Fault]) -> Case:
    """Return a case whose every start loses ranks."""
    return Case(chain, restarts=len(chain))


def kill(place: str, rank: int, step: int = 0, *, is_after: bool = False) -> list[Fault]:
    """Return one SIGKILL."""
    return [Fault(place, rank, step, is_after=is_after)]


def lose(place: str, ranks: Sequence[int], step: int) -> list[Fault]:
    """Return the loss of these ranks' nodes, with the nodes' memory."""
    return [Fault(place, rank, step, "SIGKILL with the node's memory") for rank in ranks]


NEITHER_SHARD_NOR_TWIN = (
    "memory do not continue the run: shard 1 of 4 and its twin are gone or damaged\n",
    "run from its newest checkpoint\n",
)

CASES: Mapping[str, Case] = {
    "SIGKILL in forward": lost(*(kill("forward", rank, rank + 2) for rank in range(RANKS))),
    "SIGKILL in backward": lost(*(kill("backward", rank, rank + 2) for rank in range(RANKS))),
    "SIGKILL in an exchange": lost(*(kill("exchange", rank, rank + 2) for rank in range(RANKS))),
    "SIGKILL in a gradient reduction": lost(*(kill("reduction", rank, rank + 2) for rank in range(RANKS))),
    "SIGKILL before the step's sum": lost(*(kill("sum", rank, rank + 2) for rank in range(RANKS))),
    "SIGKILL after the step's sum": lost(
        *(kill("sum", rank, rank + 2, is_after=True) for rank in range(RANKS))
    ),
    "SIGKILL before the optimizer": lost(*(kill("optimizer", rank, rank + 2) for rank in range(RANKS))),
    "SIGKILL after the optimizer": lost(
        *(kill("optimizer", rank, rank + 2, is_after=True) for rank in range(RANKS))
    ),
    "SIGKILL while a copy is written": lost(*(kill("copy", rank, rank + 2) for rank in range(RANKS))),
    "SIGKILL while a checkpoint is written": lost(*(kill("save", rank, 2 * rank + 2) for rank in range(3))),
    "SIGKILL while the last checkpoint is written": lost(kill("save", 1, STEPS), kill("recovery", 2)),
    "SIGKILL at the start": lost(kill("joining", 1), kill("start", 2), kill("start", 0, is_after=True)),
    "SIGKILL during a recovery": lost(
        kill("forward", 1, 4),
        kill("recovery", 2),
        kill("recovery", 0, is_after=True),
        kill("forward", 3, 4),
        kill("sum", 0, 5),
    ),
    "SIGKILL of two ranks at once": lost(
        [*kill("forward", 0, 3), *kill("forward", 3, 3)],
        [*kill("optimizer", 1, 5), *kill("optimizer", 2, 5)],
    ),
    "SIGKILL of all ranks at once": lost([fault for rank in range(RANKS) for fault in kill("sum", rank, 4)]),
    "loss of a node of two, with its memory": Case(
        [lose("forward", (2, 3), 4), lose("optimizer", (0, 1), 6)], restarts=2, ranks_per_node=2
    ),
    # The twins of the first one's shards are on the second one.
    "loss of two neighbouring nodes of four, with their memory": Case(
        [lose("forward", (1, 2), 4), lose("backward", (0, 3), 6)],
        restarts=2,
        ranks_per_node=1,
        said=NEITHER_SHARD_NOR_TWIN,
    ),
    "SIGSTOP of a rank": lost([Fault("forward", 2, 3, "SIGSTOP")]),
    "SIGSTOP of rank 0": lost([Fault("backward", 0, 3, "SIGSTOP")]),
    "SIGKILL of the fork server": lost([Fault("forward", 1, 4, "SIGKILL of the fork server")]),
    "SIGSTOP of the store's process": Case([[Fault("backward", 0, 3, "SIGSTOP of the store")]]),
    "full disk at a copy": Case([[Fault("copy", 1, 3, "full disk")]]),
    "full disk at a checkpoint": Case([[Fault("save", 1, 4, "full disk")]], code="file_unwritable"),
    "another configuration on a rank": Case([[Fault("start", 3, 0, "other setting")]], code="ranks_differ"),
    "other data on a rank": Case([[Fault("start", 3, 0, "other data")]], code="ranks_differ"),
    "another plan on a rank": Case([[Fault("planner", 1, 3, "other plan")]], code="ranks_differ"),
    "planner fails": Case([[Fault("planner", 0, 3, "error")]], code="rank_zero_failed"),
    "planner stalls for 5 s": Case([[Fault("planner", 0, 3, "delay")]]),
    "a rank pauses for 5 s": Case([[Fault("forward", 2, 3, "delay")]]),
}
# Two chains of faults for every run of the tests: on one node, and on as many nodes as ranks.
SHORT = lost(
    kill("forward", 1, 3),
    kill("recovery", 2),
    [*kill("optimizer", 0, 4, is_after=True), *kill("backward", 3, 4)],
    kill("copy", 3, 5),
    kill("sum", 0, 6),
    [Fault("forward", 2, 7, "SIGSTOP")],
)._replace(grace_s=1.0)
SHORT_ON_NODES = Case(
    [
        [Fault("planner", 0, 2, "delay"), *lose("forward", [2], 4)],
        lose("backward", (1, 2), 6),
        [Fault("planner", 1, 7, "other plan")],
    ],
    code="ranks_differ",
    restarts=2,
    ranks_per_node=1,
    said=NEITHER_SHARD_NOR_TWIN,
    resumed=[Fault("backward", 0, 7, "SIGSTOP of the store")],
    grace_s=1.0,
)


class Row(NamedTuple):
    """The outcome of a case.

    Attributes:
        faults: Number of starts with a fault.
        lost: Completed steps that were trained again, over all restarts.
        end_s: Seconds from each fault to the next start.
        next_s: Seconds from each fault to the end of the next step.
        named: Number of reports that name every rank with a fault.
        wrong: Deviations from the promises; empty without any.
    """

    faults: int
    lost: int
    end_s: list[float]
    next_s: list[float]
    named: int
    wrong: list[str]


def arguments(folder: Path) -> list[str]:
    """Write the configuration and the profile of a run, and return its command line."""
    config = folder / "run.toml"
    config.write_text(CONFIG.format(steps=STEPS, directory=folder / "run"))
    (folder / "profile.json").write_text(made_up_profile(CAPS).to_json())
    (folder / "memory").mkdir(exist_ok=True)
    settings = (
        f"planner.profile={folder}/profile.json",
        f"planner.strategies={';'.join(STRATEGIES)}",
        f"checkpoint.memory_folder={folder}/memory",
        "checkpoint.every_steps=2",
        f"train.silence_s={SILENCE_S}",
        "train.trace_step=0",
        # Plans must not depend on the times of a busy machine.
        "planner.slow_rank=0",
        f"train.device={kind_of_ranks()}",
        "train.deterministic=true",
    )
    return ["train", str(config), *(word for setting in settings for word in ("--set", setting))]


def run_case(folder: Path, case: Case, undisturbed: Path) -> Row:
    """Train with the faults, and compare with an undisturbed run.

    Args:
        folder: Empty folder of the case.
        case: The faults, and the expected end.
        undisturbed: Folder of a run without faults.
    """
    ended = launch(
        folder,
        RANKS,
        arguments(folder),
        case.chain,
        grace_s=case.grace_s,
        ranks_per_node=case.ranks_per_node,
    )
    return Row(
        faults=len(case.chain),
        lost=repeated_steps(ended),
        end_s=times_to(ended, ended.starts),
        next_s=times_to(ended, [event.time for event in ended.events if event.kind != STRIKE]),
        named=sum(is_named(line, faults) for line, faults in zip(losses(ended), case.chain, strict=False)),
        wrong=deviations(folder, ended, case, undisturbed),
    )


def deviations(folder: Path, ended: Ended, case: Case, undisturbed: Path) -> list[str]:
    """Return the broken promises of a run; one that ended by an error is resumed first."""
    wrong = []
    if ended.code != case.code:
        wrong.append(f"ended with {ended.code} and not {case.code}: {ended.err}")
    if len(ended.starts) != case.restarts + 1:
        wrong.append(f"{len(ended.starts) - 1} restarts and not {case.restarts}: {ended.err}")
    wrong += [f"not said: {text}" for text in case.said if text not in ended.out]
    if case.code:
        again = launch(
            folder,
            RANKS,
            [*arguments(folder), "--resume", "latest"],
            [case.resumed],
            ranks_per_node=case.ranks_per_node,
        )
        if again.code != 0 or len(again.starts) > 1:
            return [*wrong, f"not resumed: {again.err}"]
    if read_metrics(folder / "run") != read_metrics(undisturbed):
        wrong.append("other losses or norms")
    newest = CheckpointFolder.of_run(folder / "run").newest()
    if newest is None or step_of(newest) != STEPS:
        wrong.append(f"the newest checkpoint is {newest}")
    left = [path.name for path in (folder / "memory").iterdir()]
    if left or (folder / "run" / MEMORY).exists():
        wrong.append(f"left in memory: {left}")
    return wrong


def repeated_steps(ended: Ended) -> int:
    """Count the steps that rank 0 completed more than once."""
    steps = [event.step for event in ended.events if event.kind != STRIKE]
    return len(steps) - len(set(steps))


def times_to(ended: Ended, times: Sequence[float]) -> list[float]:
    """Return the seconds from the first fault of each start to the next of these times."""
    found = []
    for number, start in enumerate(ended.starts[:-1]):
        end = ended.starts[number + 1]
        strikes = [e.time for e in ended.events if e.kind == STRIKE and start <= e.time < end]
        later = [time for time in times if time >= end]
        if strikes and later:
            found.append(min(later) - strikes[0])
    return found


def losses(ended: Ended) -> list[str]:
    """Return the launcher's reports of lost ranks."""
    return [line for line in ended.err.splitlines() if "[lost_rank]" in line]


def is_named(report: str, faults: Sequence[Fault]) -> bool:
    """Return whether a report names every rank with a fault."""
    named = {int(rank) for listed in re.findall(r"ranks? ([0-9, ]+)", report) for rank in listed.split(",")}
    return {fault.rank for fault in faults} <= named


def train_undisturbed(folder: Path, ranks_per_node: int = RANKS) -> Path:
    """Train without a fault, and return the run's folder."""
    ended = launch(folder, RANKS, arguments(folder), ranks_per_node=ranks_per_node)
    assert ended.code == 0, (ended.err, ended.out)
    return folder / "run"


def main(names: Sequence[str]) -> int:
    """Run the named cases, or all of them, and print a table."""
    columns = "fault", "faults", "the run", "steps repeated", "ended after s", "next step after s", "named"
    say(f"| {' | '.join(columns)} |")
    say("|---" * len(columns) + "|")
    num_wrong = 0
    with tempfile.TemporaryDirectory() as place:
        # Sums of other nodes are added in another order.
        undisturbed: dict[int, Path] = {}
        for number, (name, case) in enumerate(CASES.items()):
            if names and name not in names:
                continue
            if case.ranks_per_node not in undisturbed:
                first = Path(place) / f"undisturbed-{case.ranks_per_node}"
                first.mkdir()
                undisturbed[case.ranks_per_node] = train_undisturbed(first, case.ranks_per_node)
            folder = Path(place) / str(number)
            folder.mkdir()
            row = run_case(folder, case, undisturbed[case.ranks_per_node])
            num_wrong += bool(row.wrong)
            end = case.code or "reaches its last step"
            times = " | ".join(_range(times) for times in (row.end_s, row.next_s))
            say(f"| {name} | {row.faults} | {end} | {row.lost} | {times} | {row.named} |")
            for wrong in row.wrong:
                say(f"WRONG: {wrong}")
    return int(num_wrong > 0)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _range(times: Sequence[float]) -> str:
    if not times:
        return "-"
    return f"{min(times):.1f}" if len(times) == 1 else f"{min(times):.1f} to {max(times):.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
