"""The run and the launcher that the copies of a start are of.

The copy of a run's folder names the starts of the original, which may still train with their copies. So
copies continue only the run that their owner names, by the path of its folder, and only once the launcher
that wrote them has ended or starts its ranks again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hydraulis.runtime.ranks.liveness.check import ENDED, Process
from hydraulis.runtime.recovery.memory_folder import Owner


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of the copies on one node, as a rank of a run compares it.

    Attributes:
        is_of_run: Whether the copies are of the run.
        other: Path of another run that the copies are of; empty without one.
        is_of_launcher: Whether ranks of this rank's launcher wrote the copies.
        living: Another launcher, whose ranks may still write copies; None if none is known to live.
    """

    is_of_run: bool = False
    other: str = ""
    is_of_launcher: bool = False
    living: Process | None = None

    @classmethod
    def of(cls, owner: Owner | None, run: Path) -> Self:
        """Compare the owner of the copies on this node with a run and with this rank's launcher.

        Args:
            owner: Owner of the copies; None if it is not known.
            run: The run's folder.
        """
        if owner is None:
            return cls()
        launcher = owner.launcher
        is_of_run, is_of_launcher = owner.run == str(run.resolve()), launcher == Process.launcher()
        # The launchers of other containers and nodes are not visible. The lock of the run's folder excludes
        # those that train.
        lives = not is_of_launcher and launcher.is_visible() and launcher.state() != ENDED
        return cls(is_of_run, "" if is_of_run else owner.run, is_of_launcher, launcher if lives else None)


def why_refused(found: Sequence[Ownership]) -> str:
    """Return the reason for which the copies of a start do not continue a run; empty if they may.

    Args:
        found: Owner of the copies, as each rank compares it.
    """
    others = [one.other for one in found if one.other]
    if others:
        return f"they are those of {others[0]}"
    if not any(one.is_of_run for one in found):
        return "no node has any"
    # The owner names one launcher, also where several have ranks on a node.
    living = [one.living for one in found if one.living is not None]
    if living and not any(one.is_of_launcher for one in found):
        return f"process {living[0].pid} on {living[0].host} lives, and its ranks may still write them"
    return ""
