import json
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.drawn import CAP, COST, LENGTHS, OPTIONS, long_tail, ranks_of, sampler
from helpers import refused
from hydraulis import balance
from hydraulis.batching import BalancedBatchSampler, SequenceCost

slow = settings(max_examples=60)


@slow
@given(lengths=LENGTHS, options=OPTIONS, epoch=st.integers(0, 3))
def test_an_epoch_has_every_sequence_once_under_the_cap(
    lengths: list[int], options: dict[str, Any], epoch: int
) -> None:
    seen: Counter[int] = Counter()
    for one in ranks_of(lengths, **options):
        one.set_epoch(epoch)
        batches = list(one)
        assert max((sum(lengths[i] for i in batch) for batch in batches), default=0) <= CAP
        seen.update(i for batch in batches for i in batch)
    assert seen == Counter(range(len(lengths)))


@slow
@given(lengths=LENGTHS, options=OPTIONS, epoch=st.integers(0, 3))
def test_ranks_agree_without_a_message(lengths: list[int], options: dict[str, Any], epoch: int) -> None:
    """Every rank's plan of all ranks is the same, and what a rank yields is its part of it."""
    own = ranks_of(lengths, **options)
    for index in range(own[0].num_steps):
        plans = [one.step(index).micro_batches for one in own]
        assert all(
            [[part.tolist() for part in rank] for rank in plan]
            == [[part.tolist() for part in rank] for rank in plans[0]]
            for plan in plans
        )
        if options["barrier"] == "micro_batch" or "micro_batches" in options:
            assert len({len(rank) for rank in plans[0]}) == 1
        if "micro_batches" in options:
            assert len(plans[0][0]) == options["micro_batches"]
    for one in own:
        one.set_epoch(epoch)
        expected = [part.tolist() for index in range(one.num_steps) for part in one.step(index).own]
        assert len(one) == len(expected)
        assert list(one) == expected


@slow
@given(lengths=LENGTHS, options=OPTIONS, data=st.data())
def test_resumption_yields_the_rest(lengths: list[int], options: dict[str, Any], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, options["ranks"] - 1))
    whole = sampler(lengths, rank=rank, **options)
    whole.set_epoch(2)
    expected = list(whole)
    done = data.draw(st.integers(0, len(expected)))
    first = sampler(lengths, rank=rank, **options)
    first.set_epoch(2)
    batches = iter(first)
    assert [next(batches) for _ in range(done)] == expected[:done]
    second = sampler(lengths, rank=rank, **options)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.epoch == 2
    second.set_epoch(2)
    assert list(second) == expected[done:]
    assert list(second) == list(sampler_at(3, lengths, rank=rank, **options))


def sampler_at(epoch: int, lengths: Any, **options: Any) -> BalancedBatchSampler:
    one = sampler(lengths, **options)
    one.set_epoch(epoch)
    return one


@slow
@given(lengths=LENGTHS, ranks=st.integers(1, 6), step=st.integers(0, 5))
def test_another_number_of_ranks_continues_with_the_same_sequences(
    lengths: list[int], ranks: int, step: int
) -> None:
    before = sampler(lengths, ranks=4, rank=0, allow_empty=True, seed=3)
    step = min(step, before.num_steps - 1)
    left = Counter(range(len(lengths)))
    for index in range(step):
        left -= Counter(
            i for rank in before.step(index).micro_batches for part in rank for i in part.tolist()
        )
    seen: Counter[int] = Counter()
    for one in ranks_of(lengths, ranks=ranks, allow_empty=True, seed=3):
        one.load_state_dict(before.state_at(step, epoch=0))
        seen.update(i for batch in one for i in batch)
    assert seen == left


@slow
@given(lengths=LENGTHS, ranks=st.integers(1, 5), count=st.sampled_from([None, 16]))
def test_the_global_order_has_the_batches_of_each_rank_in_turn(
    lengths: list[int], ranks: int, count: int | None
) -> None:
    options = {"ranks": ranks, "allow_empty": True, "sequences_per_step": 16, "micro_batches": count}
    everything = list(sampler(lengths, **options))
    assert len(everything) == len(sampler(lengths, **options))
    for one in ranks_of(lengths, **options):
        assert everything[one.rank :: ranks] == list(one)


def test_no_batch_is_empty_unless_allowed() -> None:
    for n in range(8, 60):
        lengths = long_tail(n, seed=n)
        batches = [batch for one in ranks_of(lengths, ranks=4, sequences_per_step=200) for batch in one]
        assert all(batches)


def test_without_room_for_a_sequence_each_the_step_is_refused() -> None:
    with refused("argument_invalid", "sequences_per_step is 3", "4 ranks", "allow_empty"):
        sampler([900, 900, 900], ranks=4, rank=0, sequences_per_step=3)
    few = sampler([900, 900, 900], ranks=4, rank=0, tokens_per_step=2_700)
    with refused("batch_unplaceable", "step 0 of epoch 0", "3 sequences", "4 ranks", "allow_empty"):
        list(few)
    with refused("batch_unplaceable"):
        few.report()
    assert list(sampler([900] * 3, ranks=4, rank=3, sequences_per_step=3, allow_empty=True)) == [[]]


@pytest.mark.parametrize(
    ("count", "options", "parts"),
    [
        (
            130,
            {"ranks": 64, "sequences_per_step": 64},
            ("as few as 43", "64 ranks need 64", "drop_last=True"),
        ),
        (1000, {"ranks": 64, "sequences_per_step": 256, "micro_batches": 4}, ("as few as 250", "need 256")),
        (100, {"sequences_per_step": 40, "least_micro_batches": 17, "multiple_of": 6}, (33, "need 36")),
        (100, {"sequences_per_step": 3, "micro_batches": 2, "drop_last": True}, ("as few as 3", "need 4")),
    ],
)
def test_steps_that_cannot_fill_their_micro_batches_are_refused_at_once(
    count: int, options: dict[str, Any], parts: tuple[object, ...]
) -> None:
    options = {"ranks": 2, "rank": 0} | options
    with refused("argument_invalid", *parts):
        sampler([10] * count, **options)
    sampler([10] * count, **(options | {"allow_empty": True}))


def test_steps_of_a_fixed_number_of_micro_batches_are_refused_if_they_do_not_fit() -> None:
    with refused("batch_unplaceable", 16, 2, "8,016"):
        list(sampler([501] * 16, rank=0, sequences_per_step=16, micro_batches=2))


def test_filled_steps_are_full_and_have_the_number_of_micro_batches() -> None:
    lengths = long_tail(3000)
    one = sampler(lengths, rank=0, micro_batches=4)
    report = one.report()
    assert report.fill > 0.95
    assert report.sequences == 3000
    assert len(one) == one.num_steps * 4


def test_the_last_filled_step_takes_sequences_of_the_one_before() -> None:
    lengths = [100] * 41
    steps = [sampler(lengths, rank=0, micro_batches=2).step(index) for index in range(2)]
    assert [sum(len(part) for rank in step.micro_batches for part in rank) for step in steps] == [37, 4]
    with refused("batch_unplaceable", "last step", "lacks 3"):
        sampler([CAP] * 5, rank=0, micro_batches=2)
    # Every other sequence is alone, and the first step alone has some to spare.
    lengths = [100] * 12 + [CAP] * 16 + [100]
    one = sampler(lengths, rank=0, micro_batches=2, shuffle=False)
    sizes = [
        sum(len(part) for rank in one.step(index).micro_batches for part in rank)
        for index in range(one.num_steps)
    ]
    assert sizes == [13, 4, 4, 4, 4]
    dropped = sampler([CAP] * 5, rank=0, micro_batches=2, drop_last=True)
    assert dropped.num_steps == 1


def test_full_steps_alone_drop_the_rest_of_each_epoch() -> None:
    one = sampler(long_tail(100), ranks=1, rank=0, sequences_per_step=30, drop_last=True)
    assert one.num_steps == 3
    rests = []
    for epoch in range(2):
        one.set_epoch(epoch)
        rests.append(set(range(100)) - {i for batch in one for i in batch})
    assert [len(rest) for rest in rests] == [10, 10]
    assert rests[0] != rests[1]
    tokens = sampler([100] * 20, ranks=1, rank=0, tokens_per_step=600, drop_last=True)
    assert [tokens.step(index).tokens for index in range(tokens.num_steps)] == [600] * 3
    with refused("argument_invalid", "drop_last"):
        sampler([100] * 5, sequences_per_step=6, drop_last=True)


def test_sizes_of_steps_differ_by_one_sequence_or_by_the_longest() -> None:
    lengths = long_tail(1001, longest=400)
    by_sequences = sampler(lengths, ranks=1, rank=0, sequences_per_step=90)
    sizes = [sum(map(len, by_sequences.step(i).own)) for i in range(by_sequences.num_steps)]
    assert set(sizes) == {83, 84}
    by_tokens = sampler(lengths, ranks=1, rank=0, tokens_per_step=5000)
    tokens = [by_tokens.step(i).tokens for i in range(by_tokens.num_steps)]
    assert sum(tokens) == lengths.sum()
    share = sum(tokens) / len(tokens)
    assert share <= 5000
    assert max(abs(one - share) for one in tokens) <= lengths.max()


def test_sequences_above_the_cap_are_refused_dropped_or_truncated() -> None:
    lengths = [10, 1001, 30, 2000, 50]
    with refused("sequence_too_long", 3, "2,000", "1,000"):
        sampler(lengths)
    dropping = sampler(lengths, ranks=1, rank=0, too_long="drop")
    assert sorted(i for batch in dropping for i in batch) == [0, 2, 4]
    assert dropping.num_dropped == 2
    truncating = sampler(lengths, ranks=1, rank=0, too_long="truncate")
    assert sorted(i for batch in truncating for i in batch) == [0, 1, 2, 3, 4]
    assert truncating.step(0).tokens == 2090
    with refused("sequence_too_long"):
        sampler([1001], too_long="drop")


OPTIONS_OF_THE_LOOP: list[dict[str, Any]] = [
    {"multiple_of": 3},
    {"least_micro_batches": 4},
    {"equal_sequences": True},
    {"speeds": [1.0, 0.5, 1.0]},
    {"work": np.arange(120) * 1e5},
    {"extra_tokens": np.arange(120), "cap_extra_tokens": 240},
    {"cost": SequenceCost(24_576, 1, fixed=1e6)},
]


@pytest.mark.parametrize("barrier", ["step", "micro_batch"])
@pytest.mark.parametrize("count", [None, 2])
@pytest.mark.parametrize("options", OPTIONS_OF_THE_LOOP)
def test_an_epoch_is_whole_and_resumed_under_every_option(
    barrier: str, count: int | None, options: dict[str, Any]
) -> None:
    """`count` micro-batches alone fill steps; otherwise a step has its number of sequences."""
    size: dict[str, Any] = {"tokens_per_step": 12_000}
    if count is not None:
        size = {"micro_batches": count * options.get("multiple_of", 1)}
    size["micro_batches"] = size.get("micro_batches")
    if count is not None and "least_micro_batches" in options:
        size["micro_batches"] = 4
    lengths = long_tail(120, longest=500)
    own = ranks_of(lengths, ranks=3, barrier=barrier, **size, **options)
    seen: Counter[int] = Counter()
    extra = options.get("extra_tokens", np.zeros(120, dtype=int))
    for one in own:
        for batch in one:
            assert batch
            assert lengths[batch].sum() <= CAP
            assert extra[batch].sum() <= options.get("cap_extra_tokens", 0)
            seen.update(batch)
    assert seen == Counter(range(120))
    first = own[0]
    first.set_epoch(0)
    for step in map(first.step, range(first.num_steps)):
        assert step.time >= step.lower_bound * (1 - 1e-9) > 0
        assert step.gap == step.time / step.lower_bound - 1
        counts = [len(rank) for rank in step.micro_batches]
        assert min(counts) >= options.get("least_micro_batches", 1)
        assert all(number % options.get("multiple_of", 1) == 0 for number in counts)
        if "equal_sequences" in options:
            sizes = [sum(map(len, rank)) for rank in step.micro_batches]
            assert max(sizes) - min(sizes) <= 1
    first.set_epoch(1)
    expected = list(first)
    resumed = sampler(lengths, ranks=3, rank=0, barrier=barrier, **size, **options)
    resumed.load_state_dict(json.loads(json.dumps(first.state_at(1, epoch=1, batch=1))))
    assert list(resumed) == expected[len(first.step(0, epoch=1).own) + 1 :]
    report = first.report(steps=2)
    assert report.reached >= report.lower_bound * (1 - 1e-9)


def test_a_slow_rank_has_less_work() -> None:
    lengths = long_tail(400, longest=400)
    step = sampler(lengths, ranks=4, sequences_per_step=400, speeds=[1, 1, 0.5, 1]).step(0)
    tokens = [sum(int(lengths[part].sum()) for part in rank) for rank in step.micro_batches]
    assert tokens[2] == pytest.approx(tokens[0] / 2, rel=0.1)


def test_loss_weights_are_those_of_balance() -> None:
    lengths = long_tail(60)
    targets = (lengths + 1) // 2
    own = ranks_of(lengths, sequences_per_step=60, shuffle=False, targets=targets)
    expected = balance(
        lengths,
        replicas=2,
        cap_tokens=CAP,
        barrier="micro_batch",
        linear_ms_per_token=COST.linear,
        quadratic_ms_per_token2=COST.quadratic,
        targets=targets,
    )
    weights = [weight for one in own for weight in one.step(0).loss_weights]
    assert weights == pytest.approx(expected.loss_weights.tolist())


def test_padding_counts_towards_the_cap() -> None:
    lengths = long_tail(200, longest=800)
    one = sampler(lengths, ranks=1, rank=0, pad_sequence_to=64, pad_to=128)
    for batch in one:
        padded = sum(-(-int(lengths[i]) // 64) * 64 for i in batch)
        assert -(-padded // 128) * 128 <= CAP


def test_targets_are_the_denominator_of_the_loss() -> None:
    assert sampler([5, 6, 7], sequences_per_step=3).step(0).targets == 15
    given_ = sampler([5, 6, 7], sequences_per_step=3, targets=[1, 0, 2])
    assert given_.step(0).targets == 3
    assert given_.step(0).tokens == 18
    with refused("lengths_invalid", 2, 3):
        sampler([5, 6, 7], targets=[1, 2])


def test_wrappers_find_the_attributes_that_they_read() -> None:
    one = sampler([5, 6, 7], rank=0)
    assert one.batch_size is None
    assert one.drop_last is False
    one.sampler.set_epoch(4)
    assert one.epoch == 4
    assert (one.mode, sampler([5, 6, 7]).mode) == ("rank", "global")


def test_the_next_epoch_is_current_after_an_epoch() -> None:
    one = sampler(long_tail(60), rank=0)
    first, second = list(one), list(one)
    assert one.epoch == 2
    assert first != second
    assert one.state_dict()["step"] == 0
    one.set_epoch(0)
    assert list(one) == first


def test_a_new_iteration_starts_the_epoch_again() -> None:
    one = sampler(long_tail(60), rank=0)
    batches = iter(one)
    first = next(batches)
    assert next(iter(one)) == first
    assert one.state_dict() | {"step": 0, "batch": 0} == sampler(long_tail(60), rank=0).state_dict()


def test_an_iteration_begins_with_its_first_batch() -> None:
    """Lightning makes the iterator before it sets the epoch, and torch makes two."""
    one = sampler(long_tail(60), rank=0)
    batches = iter(one)
    one.set_epoch(2)
    assert list(batches) == list(sampler_at(2, long_tail(60), rank=0))
    one.load_state_dict(one.state_at(1, epoch=0))
    unused, used = iter(one), iter(one)
    assert next(used) == one.step(1, epoch=0).own[0].tolist()
    del unused


def test_after_the_last_batch_of_a_step_the_state_is_at_the_next_one() -> None:
    """There another number of ranks may continue."""
    one = sampler(long_tail(60), rank=0)
    batches = iter(one)
    for _ in one.step(0).own:
        next(batches)
    assert (one.state_dict()["step"], one.state_dict()["batch"]) == (1, 0)
    sampler(long_tail(60), rank=2, ranks=3).load_state_dict(one.state_dict())


def test_an_earlier_epoch_does_not_discard_the_loaded_position() -> None:
    one = sampler(long_tail(60), rank=0)
    one.load_state_dict(one.state_at(1, epoch=2))
    with refused("argument_invalid", "set_epoch(0)", "epoch 2", "sampler.epoch"):
        one.set_epoch(0)
    list(one)
    one.set_epoch(0)
    assert list(one) == list(sampler(long_tail(60), rank=0))


def test_a_later_epoch_discards_the_loaded_position() -> None:
    one = sampler(long_tail(60), rank=0)
    one.load_state_dict(one.state_at(2, epoch=0))
    one.set_epoch(1)
    assert len(list(one)) == len(list(sampler_at(1, long_tail(60), rank=0)))


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"sequences_per_step": None}, "size of a step"),
        ({"tokens_per_step": 5, "sequences_per_step": 5}, "size of a step"),
        ({"sequences_per_step": 0}, "sequences_per_step is 0"),
        ({"rank": 2}, "rank is 2"),
        ({"barrier": "step"}, "barrier='step'"),
        ({"barrier": "epoch"}, "barrier is 'epoch'"),
        ({"ranks": 0}, "ranks is 0"),
        ({"too_long": "cut"}, "too_long is 'cut'"),
        ({"tokens_per_step": 50}, "tokens_per_step = 50"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"cap_tokens": 7, "pad_to": 8}, "cap_tokens is 7"),
        ({"barrier": None}, "barrier is None"),
    ],
)
def test_options_are_checked(changed: dict[str, Any], part: str) -> None:
    with refused("argument_invalid", part):
        sampler([80, 2, 3], **changed)


def test_only_existing_steps_and_epochs_are_given() -> None:
    one = sampler([5, 6, 7])
    with refused("argument_invalid", "step 1", "1 steps"):
        one.step(1)
    with refused("argument_invalid", "epoch is -1"):
        one.set_epoch(-1)


def test_a_sampler_is_pickled_to_worker_processes() -> None:
    one = sampler(long_tail(60), rank=1)
    assert list(pickle.loads(pickle.dumps(one))) == list(one)


def test_lengths_stay_in_the_mapped_file(tmp_path: Any) -> None:
    np.save(tmp_path / "lengths.npy", long_tail(500))
    one = sampler(tmp_path / "lengths.npy", rank=0)
    assert isinstance(one._pool.lengths, np.memmap)
    assert list(one) == list(sampler(long_tail(500), rank=0))
