"""What a command is doing, and how it is said."""

from dataclasses import dataclass

# So long after its time an estimate was wrong.
_LATE_S = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a command is doing.

    Attributes:
        name: of the step.
        done: of how much.
        of: in all; 0 where that is not known.
        began_s: when, by the clock.
        marked_s: when so much was done.
        first: how much was done at the beginning, such as what an earlier attempt left.
        is_share: whether it is told as a share, because what is counted means nothing to anybody.
    """

    name: str
    done: int
    of: int
    began_s: float
    marked_s: float
    first: int = 0
    is_share: bool = False

    def count(self) -> str:
        """Say how much is done."""
        if not self.of:
            return ""
        return f"{self.done / self.of:.0%}" if self.is_share else f"{self.done:,} of {self.of:,}"

    def time(self, now_s: float) -> str:
        """Say how long it will go on, or has been going on where that cannot be known.

        What is left is estimated at each mark, and counted down until the next one; once that is late,
        it cannot be known.
        """
        left_s = self._left_s(now_s) if self.first < self.done < self.of else -_LATE_S
        if left_s > -_LATE_S:
            return f"{_clock(max(0.0, left_s))} left"
        return f"for {_clock(now_s - self.began_s)}"

    def _left_s(self, now_s: float) -> float:
        pace_s = (self.marked_s - self.began_s) / (self.done - self.first)
        return pace_s * (self.of - self.done) - (now_s - self.marked_s)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
