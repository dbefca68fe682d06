"""Messages of a run before it is built."""

from data.sampling.test_run_length import Ten, config
from hydraulis.train.opened_run import _with_steps
from train.events import RecordedEvents


def test_batches_that_repeat_the_same_data_are_reported() -> None:
    events = RecordedEvents()
    for tokens in (600, 60_000):
        _with_steps(config(3, None, tokens_per_batch=tokens), Ten(), events)
    (message,) = events.messages
    assert message.startswith("data.tokens_per_batch = 60,000: ")
    assert "10 sequences of 300 tokens" in message
    assert events.steps == [3, 3]
