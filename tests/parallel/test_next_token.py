"""The choice of the next token: the largest logit, or a draw from the softmax."""

import pytest
import torch

from hydraulis.model.sequences import IGNORE_INDEX
from hydraulis.parallel.next_token import TokenChoice, best_tokens
from hydraulis.parallel.vocabulary import VocabularyShare

LOGITS = torch.tensor([0.5, -1.0, 2.0, 1.0, 0.0], dtype=torch.float64)
WHOLE = VocabularyShare(len(LOGITS), 0, None)


def chosen(temperature: float, draw: int) -> int:
    return int(TokenChoice(temperature, str(draw)).scores(0, LOGITS, WHOLE).argmax())


def test_without_a_temperature_the_most_likely_token_is_chosen() -> None:
    assert [chosen(0.0, draw) for draw in range(20)] == [2] * 20


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_from_the_softmax(temperature: float) -> None:
    draws = 4000
    counts = torch.bincount(
        torch.tensor([chosen(temperature, draw) for draw in range(draws)]), minlength=len(LOGITS)
    )
    share = (LOGITS / temperature).softmax(0)
    # Four standard deviations of each count.
    assert ((counts - draws * share).abs() < 4 * (draws * share * (1 - share)).sqrt()).all()


def test_parts_of_the_vocabulary_have_the_scores_of_the_whole() -> None:
    choice = TokenChoice(0.8, "key")
    whole = choice.scores(3, LOGITS, WHOLE)
    parts = [choice.scores(3, LOGITS[:2], WHOLE), choice.scores(3, LOGITS[2:], VocabularyShare(5, 2, None))]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(choice.scores(4, LOGITS, WHOLE), whole)


def test_only_marked_positions_have_a_next_token() -> None:
    hidden_TH = torch.randn(6, 4, dtype=torch.float64)
    weight_VH = torch.randn(5, 4, dtype=torch.float64)
    mark_T = torch.full((6,), IGNORE_INDEX)
    mark_T[2], mark_T[5] = 7, 1
    best = best_tokens(hidden_TH, weight_VH, mark_T, WHOLE, TokenChoice(0.0, ""))
    logits_TV = hidden_TH @ weight_VH.T
    assert best[:, 0].tolist() == [7, 1]
    assert best[:, 2].tolist() == logits_TV[[2, 5]].argmax(1).tolist()
    torch.testing.assert_close(best[:, 1], logits_TV[[2, 5]].amax(1))
    assert best_tokens(
        hidden_TH, weight_VH, torch.full((6,), IGNORE_INDEX), WHOLE, TokenChoice(0.0, "")
    ).shape == (0, 3)


def test_a_logit_that_is_no_number_is_never_chosen() -> None:
    logits_V = LOGITS.clone()
    logits_V[2] = torch.nan
    assert int(TokenChoice(0.0, "").scores(0, logits_V, WHOLE).argmax()) == 3
