"""An activity of a command, with its progress in words."""

from dataclasses import dataclass

# An estimate that is this much overdue is no longer shown.
_OVERDUE_S = 1.0


@dataclass(frozen=True, slots=True)
class Activity:
    """A part of a command's work that takes a while.

    Attributes:
        name: Name of the activity.
        done: Number of completed items.
        total: Number of all items; 0 if unknown.
        started_s: Start, in seconds of the monotonic clock.
        updated_s: Time of the last change of `done`, by the same clock.
        first: Items that were complete at the start, such as those of an earlier attempt.
        is_share: Whether progress is shown as a percentage, because the items mean nothing to users.
    """

    name: str
    done: int
    total: int
    started_s: float
    updated_s: float
    first: int = 0
    is_share: bool = False

    def count(self) -> str:
        """Return the progress in words; empty if the total is unknown."""
        if not self.total:
            return ""
        return f"{self.done / self.total:.0%}" if self.is_share else f"{self.done:,} of {self.total:,}"

    def time(self, now_s: float) -> str:
        """Return the remaining time in words, or the elapsed time where there is no estimate.

        The remaining time is estimated at each update and counts down until the next one.
        """
        left_s = self._left_s(now_s) if self.first < self.done < self.total else -_OVERDUE_S
        if left_s > -_OVERDUE_S:
            return f"{_clock(max(0.0, left_s))} left"
        return f"for {_clock(now_s - self.started_s)}"

    def _left_s(self, now_s: float) -> float:
        item_s = (self.updated_s - self.started_s) / (self.done - self.first)
        return item_s * (self.total - self.done) - (now_s - self.updated_s)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
