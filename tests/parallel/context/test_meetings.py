import pytest
import torch

from hydraulis.parallel.context.meetings import ring_meetings
from hydraulis.parallel.context.zigzag import zigzag_split
from model.attention.reference import visible


@pytest.mark.parametrize("cp", [2, 3, 5])
@pytest.mark.parametrize("lengths", [[23, 1, 8], [1, 1], [2, 2, 2, 31, 5]])
def test_meetings_are_exactly_the_pairs_that_causal_attention_has(lengths: list[int], cp: int) -> None:
    split = zigzag_split(lengths, cp)
    places = [
        [
            (i, place)
            for i, cut in enumerate(split)
            for part in (cut.front(rank), cut.back(rank))
            for place in part
        ]
        for rank in range(cp)
    ]
    met = []
    for rank in range(cp):
        for step, meeting in enumerate(ring_meetings(split, rank, cp, "cpu")):
            queries = meeting.of_queries(torch.arange(len(places[rank]))).tolist()
            keys = meeting.of_keys(torch.arange(len(places[(rank - step) % cp]))).tolist()
            pairs = visible(meeting.mask).nonzero().tolist()
            assert meeting.is_empty == (not pairs)
            met += [(places[rank][queries[q]], places[(rank - step) % cp][keys[k]]) for q, k in pairs]
    expected = [
        ((i, q), (i, k)) for i, length in enumerate(lengths) for q in range(length) for k in range(q + 1)
    ]
    assert sorted(met) == expected
