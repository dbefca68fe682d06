"""Questions to all ranks that are answered by yes or no in every step."""

from collections.abc import Callable, Sequence


class Votes:
    """Counts the ranks that say yes to each question; the all-reduce of every step carries the answers.

    Every rank asks the same questions in the same order.
    """

    def __init__(self) -> None:
        self._answers: dict[str, Callable[[], bool]] = {}
        self._counts: dict[str, int] = {}

    def ask(self, question: str, answer: Callable[[], bool]) -> None:
        """Ask a question in every following step.

        Args:
            question: Name of the question; an earlier one of the same name is replaced.
            answer: Function that returns this rank's answer.
        """
        self._answers[question] = answer
        self.forget(question)

    def cast(self) -> list[bool]:
        """Return this rank's answers, in the order of the questions."""
        return [answer() for answer in self._answers.values()]

    def take(self, counts: Sequence[int]) -> None:
        """Take the number of ranks that said yes to each question."""
        self._counts = dict(zip(self._answers, counts, strict=True))

    def forget(self, question: str) -> None:
        """Drop the count of a question, which an event has outdated."""
        self._counts.pop(question, None)

    def count(self, question: str) -> int | None:
        """Return the ranks that said yes in the last step; None without a count since `ask` or `forget`."""
        return self._counts.get(question)
