"""Runs the launches of all ranks in a model of hosts, streams and communication, and reports stuck launches.

A host launches one list in order. A computation completes once the launches that it waits for have. A
communication starts once those have, and completes once it has started on all its ranks: until then it
occupies its device. Adversaries restrict hosts and devices; a list without deadlock finishes under each.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple

from runtime.redistribute.launches import Launch


class HostWaits(Enum):
    """Launches before which a host waits until its device is idle."""

    NEVER = "never"
    COMPUTATIONS = "before every computation, as if its kernels had yet to be loaded"
    LAUNCHES = "before every launch, as with CUDA_LAUNCH_BLOCKING"


class Adversary(NamedTuple):
    """Restrictions of hosts and devices.

    Attributes:
        host_waits: Launches before which a host waits for its device.
        resident: Most communications on a device at a time, admitted in the order of their launches; None for
            any number in any order.
        opens_pairs: Whether the first communication of two ranks in a stream blocks both hosts until both
            have reached it.
    """

    host_waits: HostWaits = HostWaits.NEVER
    resident: int | None = None
    opens_pairs: bool = False


class Stuck(NamedTuple):
    """A rank that cannot go on.

    Attributes:
        rank: Number of the rank.
        next: Launch that its host has reached; None if it has launched all.
        incomplete: Launches on its device that have not completed.
    """

    rank: int
    next: tuple[Hashable, ...] | None
    incomplete: list[tuple[Hashable, ...]]


def replay(ranks: Sequence[Sequence[Launch]], adversary: Adversary) -> list[Stuck]:
    """Run the launches of all ranks as far as they go; return the ranks that are stuck."""
    model = _Model(ranks, adversary)
    model.run()
    return [device.stuck() for device in model.devices if device.is_busy]


class _Device:
    def __init__(self, rank: int, launches: Sequence[Launch]) -> None:
        self.rank, self.launches = rank, launches
        self.next = 0
        self.incomplete: list[int] = []
        self.started = [False] * len(launches)
        self.completed = [False] * len(launches)
        self.resident = 0

    @property
    def is_busy(self) -> bool:
        return bool(self.incomplete) or self.next < len(self.launches)

    def stuck(self) -> Stuck:
        reached = self.launches[self.next].name if self.next < len(self.launches) else None
        return Stuck(self.rank, reached, [self.launches[index].name for index in self.incomplete])


class _Model:
    def __init__(self, ranks: Sequence[Sequence[Launch]], adversary: Adversary) -> None:
        self.devices = [_Device(rank, launches) for rank, launches in enumerate(ranks)]
        self._adversary = adversary
        # Of each communication, the ranks that have started it, and those whose host has reached it.
        self._met: dict[Hashable, set[int]] = {}
        self._reached: dict[Hashable, set[int]] = {}
        self._pairs: set[tuple[str, int, int]] = set()
        self._todo = deque(range(len(ranks)))

    def run(self) -> None:
        while self._todo:
            device = self.devices[self._todo.popleft()]
            while self._compute(device) | self._launch(device):
                pass

    def _compute(self, device: _Device) -> bool:
        """Start and complete the launches of a device as far as they go; return whether any completed."""
        num_before, may_enter = len(device.incomplete), True
        incomplete = []
        for index in device.incomplete:
            launch = device.launches[index]
            if not device.started[index]:
                is_ready = all(device.completed[one] for one in launch.waits)
                if launch.meets is None:
                    device.started[index] = is_ready
                elif is_ready and may_enter and device.resident != self._adversary.resident:
                    device.started[index] = True
                    device.resident += 1
                    self._met.setdefault(launch.meets, set()).add(device.rank)
                    self._todo.extend(launch.peers)
                else:
                    may_enter = self._adversary.resident is None
            if device.started[index] and self._all_met(launch):
                device.completed[index] = True
                device.resident -= launch.meets is not None
            else:
                incomplete.append(index)
        device.incomplete = incomplete
        return len(incomplete) < num_before

    def _all_met(self, launch: Launch) -> bool:
        return launch.meets is None or self._met[launch.meets].issuperset(launch.peers)

    def _launch(self, device: _Device) -> bool:
        """Launch as far as the host goes; return whether it launched."""
        first = device.next
        while device.next < len(device.launches) and self._may_launch(device, device.launches[device.next]):
            device.incomplete.append(device.next)
            device.next += 1
        return device.next > first

    def _may_launch(self, device: _Device, launch: Launch) -> bool:
        match self._adversary.host_waits:
            case HostWaits.COMPUTATIONS if launch.meets is None and device.incomplete:
                return False
            case HostWaits.LAUNCHES if device.incomplete:
                return False
        return not self._adversary.opens_pairs or self._opens(device, launch)

    def _opens(self, device: _Device, launch: Launch) -> bool:
        """Open the pairs of a communication once both hosts have reached it; return whether all are open."""
        pairs = [(launch.stream, *sorted((device.rank, peer))) for peer in launch.peers]
        if self._pairs.issuperset(pairs):
            return True
        reached = self._reached.setdefault(launch.meets, set())
        if device.rank not in reached:
            reached.add(device.rank)
            self._todo.extend(launch.peers)
        if not reached.issuperset(launch.peers):
            return False
        self._pairs.update(pairs)  # type: ignore[arg-type]
        return True
