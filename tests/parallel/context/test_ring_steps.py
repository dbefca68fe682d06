import pytest
import torch

from hydraulis.parallel.context.ring_steps import ring_steps
from hydraulis.parallel.context.zigzag import zigzag_split
from model.attention.reference import visible


@pytest.mark.parametrize("cp", [2, 3, 5])
@pytest.mark.parametrize("lengths", [[23, 1, 8], [1, 1], [2, 2, 2, 31, 5]])
def test_the_steps_have_exactly_the_pairs_of_causal_attention(lengths: list[int], cp: int) -> None:
    split = zigzag_split(lengths, cp)
    positions = [
        [
            (i, position)
            for i, cut in enumerate(split)
            for part in (cut.front(rank), cut.back(rank))
            for position in part
        ]
        for rank in range(cp)
    ]
    pairs_seen = []
    for rank in range(cp):
        for distance, step in enumerate(ring_steps(split, rank, cp, "cpu")):
            theirs = positions[(rank - distance) % cp]
            queries = step.select_queries(torch.arange(len(positions[rank]))).tolist()
            keys = step.select_keys(torch.arange(len(theirs))).tolist()
            pairs = visible(step.mask).nonzero().tolist()
            assert step.is_empty == (not pairs)
            pairs_seen += [(positions[rank][queries[q]], theirs[keys[k]]) for q, k in pairs]
    expected = [
        ((i, q), (i, k)) for i, length in enumerate(lengths) for q in range(length) for k in range(q + 1)
    ]
    assert sorted(pairs_seen) == expected
