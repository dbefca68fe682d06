import pytest

from hydraulis.errors import InvalidInputError
from hydraulis.model.loss import check_denominator


def test_a_batch_without_targets_is_refused() -> None:
    check_denominator(1)
    with pytest.raises(InvalidInputError, match="denominator = 0") as caught:
        check_denominator(0)
    assert caught.value.code == "batch_empty"
