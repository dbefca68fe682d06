"""An observer that keeps the events of a run."""

from hydraulis.train.observer import TrainingObserver


class RecordedEvents(TrainingObserver):
    """Keeps messages and numbers of steps, in their order."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.steps: list[int] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def num_steps(self, num_steps: int) -> None:
        self.steps.append(num_steps)
