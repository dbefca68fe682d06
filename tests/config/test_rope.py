from typing import Any

import pytest

from hydraulis.config.rope import RopeScaling
from hydraulis.errors import InvalidInputError

YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0.5}, "rope_scaling.factor = 0.5"),
        ({"low_freq_factor": 0.0}, "rope_scaling.low_freq_factor = 0.0"),
        ({"high_freq_factor": 1.0}, "rope_scaling.high_freq_factor = 1.0 must be a finite number above 1"),
        ({"beta_slow": -1.0}, "rope_scaling.beta_slow = -1.0"),
        ({"beta_fast": 0.5}, "rope_scaling.beta_fast = 0.5"),
        ({"attention_factor": 0.0}, "rope_scaling.attention_factor = 0.0"),
        ({"original_max_position_embeddings": 0}, "rope_scaling.original_max_position_embeddings = 0"),
        ({"original_max_position_embeddings": None}, "rope_type = 'yarn' needs it"),
    ],
)
def test_fields_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    RopeScaling(**YARN)
    with pytest.raises(InvalidInputError, match=message) as caught:
        RopeScaling(**YARN | changes)
    assert caught.value.code == "config_value"


def test_linear_scaling_needs_no_context() -> None:
    assert RopeScaling(rope_type="linear", factor=3.0).original_max_position_embeddings is None
