from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.drawn import COST, sampler
from helpers import refused
from hydraulis.batching import make_forest
from hydraulis.batching.items.groups import make_groups


def answers(prompts: int, seed: int = 0) -> tuple[list[list[int]], dict[str, Any]]:
    """Make prompts with 1 to 6 answers each, in mixed order."""
    rng = np.random.default_rng(seed)
    rows = []
    for prompt in range(prompts):
        head = [prompt, *rng.integers(1000, 2000, rng.integers(0, 60)).tolist()]
        for answer in range(rng.integers(1, 7)):
            tail = rng.integers(1000, 2000, rng.integers(1, 40)).tolist()
            rows.append((prompt, len(head), [*head, -1 - answer, *tail]))
    rng.shuffle(rows)
    groups, prefixes, sequences = zip(*rows, strict=True)
    return list(sequences), {"groups": list(groups), "prefix_tokens": list(prefixes)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"barrier": "step"},
        {"micro_batches": 3},
        {"pad_to": 16},
        {"sequences_per_step": 5, "micro_batches": 2},
    ],
)
def test_groups_stay_together_and_prefixes_count_once(options: dict[str, Any]) -> None:
    sequences, groups = answers(60)
    seen: Counter[int] = Counter()
    for rank in range(2):
        one = sampler([len(sequence) for sequence in sequences], rank=rank, **groups, **options)
        for batch in one:
            assert batch
            labels = {groups["groups"][i] for i in batch}
            assert len(batch) == sum(label in labels for label in groups["groups"])
            assert len(make_forest([sequences[i] for i in batch]).tokens) <= 1000
            seen.update(batch)
    assert seen == Counter(range(len(sequences)))


def test_a_group_costs_its_tree() -> None:
    sequences, options = answers(20)
    groups = make_groups(
        np.array([len(sequence) for sequence in sequences]),
        np.array(options["groups"]),
        np.array(options["prefix_tokens"]),
    )
    for group in range(20):
        forest = make_forest([sequences[i] for i in groups.expand(np.array([group]))])
        assert groups.tokens[group] == len(forest.tokens)
        assert groups.squares[group] == forest.squares


def test_steps_are_balanced_by_the_work_of_the_trees() -> None:
    sequences, groups = answers(200)
    one = sampler([len(sequence) for sequence in sequences], sequences_per_step=50, **groups)
    report = one.report()
    assert report.reached < 1.02 * report.ideal
    assert report.sequences == len(sequences)
    rows = list(zip(sequences, groups["groups"], strict=True))
    forests = [make_forest([row for row, label in rows if label == group]) for group in range(200)]
    work = sum(COST.linear * len(forest.tokens) + COST.quadratic * forest.squares for forest in forests)
    assert report.ideal == pytest.approx(work / 2)
    assert report.tokens == sum(len(forest.tokens) for forest in forests)
    targets = sum(one.step(index).targets for index in range(one.num_steps))
    assert targets == sum(len(sequence) - 1 for sequence in sequences)


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_groups_without_a_prefix_are_their_sequences(lengths: list[int], seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 9, len(lengths))
    groups = make_groups(np.array(lengths), labels, None)
    assert groups.tokens.sum() == sum(lengths)
    assert groups.squares.sum() == sum(length**2 for length in lengths)
    members = [groups.expand(np.array([group])).tolist() for group in range(len(groups.tokens))]
    assert sorted(i for one in members for i in one) == list(range(len(lengths)))
    assert [one[0] for one in members] == sorted(one[0] for one in members)
    assert all(len({labels[i] for i in one}) == 1 for one in members)


@pytest.mark.parametrize(
    ("changed", "code", "parts"),
    [
        ({"groups": [0, 1]}, "lengths_invalid", ("groups has 2", 3)),
        ({"prefix_tokens": [1, 1]}, "lengths_invalid", ("prefix_tokens has 2",)),
        ({"prefix_tokens": [1, 9, 1]}, "lengths_invalid", ("sequence 1", 9)),
        ({"prefix_tokens": [1, 2, 1]}, "lengths_invalid", ("sequence 1", "prefix of 2")),
        ({"groups": None, "prefix_tokens": [1, 1, 1]}, "argument_invalid", ("without groups",)),
        ({"too_long": "truncate"}, "argument_invalid", ("truncate",)),
        ({"cap_tokens": 20}, "sequence_too_long", ("group 0", 21)),
    ],
)
def test_groups_are_checked(changed: dict[str, Any], code: str, parts: tuple[object, ...]) -> None:
    options: dict[str, Any] = {"groups": [4, 4, 7], "prefix_tokens": None, "cap_tokens": 30}
    with refused(code, *parts):
        sampler([15, 6, 7], **(options | changed))
