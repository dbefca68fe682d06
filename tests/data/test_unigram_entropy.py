import math
from collections.abc import Sequence

import numpy as np
import pytest

from hydraulis.config.data import DataConfig
from hydraulis.data import unigram_entropy
from hydraulis.data.corpus import Corpus
from hydraulis.data.dataset import Dataset
from hydraulis.data.open import make_datasets
from hydraulis.data.tokens import SequenceTokens


def corpus_of(*documents: bytes, counted: bytes | None = None) -> Corpus:
    """Make a corpus; of masked documents, the bytes in `counted` are the targets."""
    tokens = np.frombuffer(b"".join(documents), dtype=np.uint8)
    mask = None if counted is None else np.isin(tokens, list(counted))
    return Corpus(
        token_T=tokens, offset=np.cumsum([0, *map(len, documents)], dtype=np.int64), loss_mask_T=mask
    )


def entropy_of(*corpora: Corpus, weights: Sequence[float] | None = None) -> float:
    data = make_datasets(DataConfig(tokens_per_batch=8), [[corpus] for corpus in corpora], weights).train
    return float(data.describe()["unigram_entropy_nats"])


def entropy(*shares: float) -> float:
    return -sum(share * math.log(share) for share in shares)


def test_all_sources_count_by_their_targets() -> None:
    # The first token of a document is no target.
    first, second = corpus_of(b"xaaaa", b"xbb"), corpus_of(b"xcc")
    assert entropy_of(first) == pytest.approx(entropy(4 / 6, 2 / 6))
    assert entropy_of(first, second) == pytest.approx(entropy(4 / 8, 2 / 8, 2 / 8))


def test_weights_are_shares_of_the_tokens() -> None:
    # 5 tokens with 4 targets, and 4 tokens with 2: of 9 tokens each, 7.2 and 4.5 are targets.
    corpora = corpus_of(b"xaaaa"), corpus_of(b"xb", b"xb")
    found = entropy_of(*corpora, weights=[1, 1])
    assert found == pytest.approx(entropy(7.2 / 11.7, 4.5 / 11.7))
    assert entropy_of(*corpora, weights=[3, 3]) == pytest.approx(found)


def test_only_targets_count() -> None:
    assert entropy_of(corpus_of(b"xabcd", b"xaaaa", counted=b"ab")) == pytest.approx(entropy(5 / 6, 1 / 6))


def test_a_sample_is_spread_over_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = corpus_of(*[b"xa"] * 50, *[b"xb"] * 50)
    monkeypatch.setattr(unigram_entropy, "_MAX_SEQUENCES", 20)
    assert entropy_of(halves, corpus_of(*[b"xc"] * 100)) == pytest.approx(entropy(1 / 4, 1 / 4, 1 / 2))
    reads: list[int] = []
    read = Dataset.read

    def counted(data: Dataset, index: int) -> SequenceTokens:
        reads.append(index)
        return read(data, index)

    monkeypatch.setattr(Dataset, "read", counted)
    entropy_of(halves)
    assert len(reads) == 20
    monkeypatch.setattr(unigram_entropy, "_MAX_TOKENS", 20)
    reads.clear()
    assert entropy_of(halves) == pytest.approx(entropy(1 / 2, 1 / 2))
    assert len(reads) == 10
