import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hydraulis.data.sampling.held_out import held_out_documents


@given(st.integers(2, 200), st.floats(0.001, 0.999), st.integers(0, 2**32), st.integers(0, 9))
def test_every_document_is_on_one_side(num_documents: int, share: float, seed: int, source: int) -> None:
    trained, kept = held_out_documents(num_documents, share, seed, source)
    assert sorted([*trained, *kept]) == list(range(num_documents))
    assert (np.diff(trained) > 0).all()
    assert (np.diff(kept) > 0).all()
    assert 1 <= len(kept) < num_documents
    assert abs(len(kept) - share * num_documents) <= 1


def test_the_seed_and_the_source_choose() -> None:
    choices = [tuple(held_out_documents(100, 0.1, *which)[1]) for which in ((0, 0), (1, 0), (0, 1), (0, 0))]
    assert choices[0] == choices[3]
    assert len(set(choices)) == 3


def test_a_single_document_is_not_divided() -> None:
    trained, kept = held_out_documents(1, 0.5, 0, 0)
    assert (len(trained), len(kept)) == (1, 0)
