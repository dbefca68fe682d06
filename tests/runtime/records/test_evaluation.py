"""One line of evaluations.jsonl."""

import pytest

from hydraulis.runtime.records.evaluation import Evaluation


def test_a_line_is_read_as_it_was_written() -> None:
    evaluation = Evaluation(step=20, loss=2.5)
    assert evaluation.to_json() == '{"step": 20, "loss": 2.5}'
    assert Evaluation.from_json(evaluation.to_json()) == evaluation


@pytest.mark.parametrize(
    "line", ['{"step": 20}', '{"step": 2.5, "loss": 2.5}', '{"step": 2, "loss": "x"}', "[]"]
)
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="evaluation"):
        Evaluation.from_json(line)
