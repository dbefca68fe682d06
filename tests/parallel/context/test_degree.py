import pytest

from hydraulis import Scheme
from hydraulis.errors import InvalidInputError
from hydraulis.parallel.context.degree import check_context_degree
from small_model import small_config


def test_ulysses_shares_out_the_query_heads_of_a_tensor_rank() -> None:
    config = small_config()
    for scheme in ("<1>", "<cp8>", "<cp3>", "<tp2,cp4>"):
        check_context_degree(config, Scheme(scheme), "ulysses")
    with pytest.raises(InvalidInputError, match="<tp2,cp5> is above its limit of 4") as caught:
        check_context_degree(config, Scheme("<tp2,cp5>"), "ulysses")
    assert caught.value.code == "scheme_model_mismatch"


def test_ring_attention_has_no_limit() -> None:
    check_context_degree(small_config(), Scheme("<tp8,cp64>"), "ring")
