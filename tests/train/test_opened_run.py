"""What a run says of its length before it begins."""

import pytest

from data.sampling.test_run_length import Ten, config
from hydraulis.cli.terminal.display import TrainingDisplay
from hydraulis.train.opened_run import _with_steps


def test_batches_that_repeat_what_there_is_are_told_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    for tokens in (600, 60_000):
        with TrainingDisplay(0) as display:
            _with_steps(config(3, None, tokens_per_batch=tokens), Ten(), display)
    note = "data.tokens_per_batch = 60,000: the data, 10 sequences of 300 tokens in all, come about 200 times"
    assert capsys.readouterr().out.startswith(note)
