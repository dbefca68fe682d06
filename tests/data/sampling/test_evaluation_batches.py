from collections.abc import Sequence

import numpy as np
import pytest

from hydraulis.config.data import DataConfig
from hydraulis.data.corpus import Corpus
from hydraulis.data.dataset import Dataset
from hydraulis.data.open import make_datasets
from hydraulis.data.sampling.evaluation_batches import fingerprint_evaluated, make_evaluation_batches

CONFIG = DataConfig(tokens_per_batch=8)


def data_of(*lengths: Sequence[int], weights: Sequence[float] | None = None) -> Dataset:
    """Make a data set with a source for each list of lengths."""
    corpora = [
        [Corpus(token_T=np.zeros(sum(one), dtype=np.uint8), offset=np.cumsum([0, *one]))] for one in lengths
    ]
    return make_datasets(CONFIG, corpora, weights).train


def test_every_sequence_is_evaluated_once_in_batches_of_one_source() -> None:
    data = data_of([4, 4, 4], [8, 2], [3])
    sources = make_evaluation_batches(CONFIG, data)
    batches = [[batch.tolist() for batch in source.batches] for source in sources]
    assert batches == [[[0, 1], [2]], [[3], [4]], [[5]]]
    assert [source.source for source in sources] == [0, 1, 2]
    # A first token is no target.
    assert [source.share for source in sources] == [9, 8, 2]


def test_weights_give_a_source_its_share_of_the_tokens() -> None:
    sources = make_evaluation_batches(CONFIG, data_of([4, 4], [10], weights=[3, 1]))
    assert [source.share for source in sources] == pytest.approx([3 * 6 / 8, 1 * 9 / 10])


def test_a_limit_is_spread_over_each_source_and_leaves_the_shares() -> None:
    data = data_of([2] * 9, [2] * 2)
    sources = make_evaluation_batches(CONFIG, data, 3)
    chosen = [np.concatenate(source.batches).tolist() for source in sources]
    assert chosen == [[0, 4, 8], [9, 10]]
    assert [source.share for source in sources] == [9, 2]


def test_a_source_without_held_out_documents_is_absent() -> None:
    # A single document is used for training.
    held = make_datasets(
        DataConfig(tokens_per_batch=8, held_out=0.5),
        [[corpus] for corpus in data_of([4], [4, 4], weights=[1, 2]).corpora],
        [1, 2],
    ).held_out
    assert held is not None
    (source,) = make_evaluation_batches(CONFIG, held)
    assert source.source == 1
    assert source.share == pytest.approx(2 * 3 / 4)


def test_the_fingerprint_is_that_of_the_evaluated_sequences() -> None:
    data = data_of([4, 4, 4], [8, 2])
    whole = fingerprint_evaluated(data)
    assert fingerprint_evaluated(data_of([4, 4, 4], [8, 2]), 3) == whole
    others = [fingerprint_evaluated(data, 2), fingerprint_evaluated(data, 1), whole]
    others += [fingerprint_evaluated(data_of(*one)) for one in ([[4, 4, 3], [8, 2]], [[4, 4], [4, 8, 2]])]
    assert len(set(others)) == len(others)
