import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import ROOT
from hydraulis.config.run import load
from hydraulis.data.analysis import Analysis, analyze_run, compute_batch_imbalance, compute_length_statistics

LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@given(LENGTHS)
def test_the_bins_count_every_sequence_once(lengths: list[int]) -> None:
    found = compute_length_statistics(np.array(lengths), np.array(lengths) - 1)
    assert (found.sequences, found.tokens, found.longest) == (len(lengths), sum(lengths), max(lengths))
    assert found.targets == sum(lengths) - len(lengths)
    for one in found.bins:
        inside = [length for length in lengths if one.first <= length <= one.last]
        assert (one.sequences, one.tokens) == (len(inside), sum(inside))
        assert one.squares == sum(length**2 for length in inside)
    assert sum(one.sequences for one in found.bins) == len(lengths)
    assert found.bins[0].sequences > 0
    assert found.bins[-1].sequences > 0


@given(LENGTHS)
def test_a_quantile_bounds_its_share_of_the_sequences(lengths: list[int]) -> None:
    found = compute_length_statistics(np.array(lengths), np.array(lengths))
    for share, length in found.quantiles.items():
        assert length in lengths
        assert sum(one <= length for one in lengths) >= share * len(lengths)
        assert sum(one < length for one in lengths) < share * len(lengths)


def test_sequences_are_assigned_to_replicas_in_turn() -> None:
    found = compute_batch_imbalance([np.array([6, 1, 2, 3]), np.array([2, 2])], 2)
    # (6 + 2) against (1 + 3), and their squares: 40 against 10.
    assert found.token_imbalance == pytest.approx([8 / 6, 1])
    assert found.square_imbalance == pytest.approx([40 / 25, 1])
    assert (found.sequences, found.tokens, found.longest) == (3, 8, [2, 6])


def test_most_batches_have_a_sequence_for_each_replica() -> None:
    few, some, many = np.full(1, 9), np.full(4, 9), np.full(30, 9)
    assert compute_batch_imbalance([few, some, many], 3).replicas == 3
    assert compute_batch_imbalance([few, some, many], 3).replica_limit is None
    found = compute_batch_imbalance([many, some, few], 8)
    assert (found.replicas, found.median_sequences) == (4, 4)
    assert found.replica_limit == "half of the batches have no more sequences"
    # The empty replicas of a batch with few sequences count: 9 against a mean of 9 / 4.
    assert found.token_imbalance[-1] == found.square_imbalance[-1] == 4
    assert compute_batch_imbalance([many, some], 8).replicas == 4
    assert compute_batch_imbalance([few, many, many], 64).replicas == 30


@given(LENGTHS, st.booleans())
def test_an_analysis_comes_back_from_json(lengths: list[int], drawn: bool) -> None:  # noqa: FBT001
    whole = np.array(lengths)
    batches = compute_batch_imbalance([whole, whole[:1]], 2) if drawn else None
    found = Analysis(lengths=compute_length_statistics(whole, whole - 1), batches=batches)
    assert Analysis.from_json(json.dumps(found.to_dict())) == found


@dataclass
class Lengths:
    """A source of which nothing but lengths is read."""

    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def target_counts(self) -> npt.NDArray[np.int64]:
        return self.lengths - 1


def test_a_run_counts_replicas_by_the_rule_of_all_analyses() -> None:
    config = load(str(ROOT / "examples/demo.toml"), ["data.sequences_per_batch=3", "train.steps=7"])
    data = Lengths(np.arange(2, 50))
    found = analyze_run(config, data, 8)  # type: ignore[arg-type]
    assert (found.lengths.sequences, found.lengths.longest) == (48, 49)
    assert found.batches is not None
    assert (found.batches.batches, found.batches.sequences) == (7, 3)
    assert found.batches.replicas == compute_batch_imbalance([np.full(3, 9)], 8).replicas == 3
    two = analyze_run(config, data, 2).batches  # type: ignore[arg-type]
    assert two is not None
    assert (two.replicas, two.replica_limit) == (2, None)
