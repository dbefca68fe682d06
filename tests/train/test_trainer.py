"""What a run says of its model before it makes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from data.test_run_length import config
from devices import one_rank
from hydraulis.cli.display import TrainingDisplay
from hydraulis.train.trainer import _note_model


def test_text_that_is_not_read_by_the_models_tokenizer_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = config(1, None)
    run = replace(run, checkpoint=replace(run.checkpoint, weights=str(tmp_path)))
    for has_tokenizer in (False, True):
        if has_tokenizer:
            (tmp_path / "tokenizer.json").write_text("{}")
        with one_rank("cpu"), TrainingDisplay(0) as display:
            _note_model(run, display)
        said = f"{tmp_path} has a tokenizer, and data.tokenizer = 'bytes' gives other tokens"
        assert capsys.readouterr().out.startswith(said) is has_tokenizer
