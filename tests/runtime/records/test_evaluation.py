"""One line of evaluations.jsonl."""

import pytest

from hydraulis.runtime.records.evaluation import Evaluation, SourceLoss


def test_a_line_is_read_as_it_was_written() -> None:
    evaluation = Evaluation(step=20, loss=2.5, data="ab")
    assert evaluation.to_json() == '{"step": 20, "loss": 2.5, "data": "ab"}'
    assert Evaluation.from_json(evaluation.to_json()) == evaluation


def test_several_sources_have_their_losses() -> None:
    evaluation = Evaluation(20, 2.5, "ab", (SourceLoss(0, 2.0, 10), SourceLoss(2, 3.0, 10)))
    assert Evaluation.from_json(evaluation.to_json()) == evaluation
    assert evaluation.describe() == "2.500 (source 0: 2.000, source 2: 3.000)"
    assert evaluation.tracked() == {
        "evaluation/loss": 2.5,
        "evaluation/source_0/loss": 2.0,
        "evaluation/source_2/loss": 3.0,
    }
    assert Evaluation(20, 2.5, "ab").describe() == "2.500"


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 2, "loss": NaN}',
        '{"step": 20}',
        '{"step": 2.5, "loss": 2.5}',
        '{"step": 2, "loss": "x"}',
        "[]",
    ],
)
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="evaluation"):
        Evaluation.from_json(line)
