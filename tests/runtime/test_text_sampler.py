"""Sampled texts are those of a whole decoder, under any strategy and on every rank."""

import pytest

from hydraulis.config.kinds import ShardingKind
from ranks import run_ranks
from runtime.text_sampler_workers import PROMPTS, STEP, due_steps, sample, sample_until

STRATEGIES = ("1x<tp2,pp2>", "2x<cp2>", "1x<pp2>+2x<1>", "4x<1>", "1x<tp2>", "1x<tp4>")


@pytest.mark.parametrize(
    ("temperature", "sharding", "frozen"),
    [
        (0.0, "none", ()),
        (0.7, "none", ()),
        (0.7, "parameters", ()),
        (0.7, "parameters", ("model.embed_tokens.*", "model.layers.0.*", "*mlp*")),
    ],
)
def test_any_strategy_continues_prompts_as_a_whole_decoder(
    temperature: float, sharding: ShardingKind, frozen: tuple[str, ...]
) -> None:
    strategies = [one for one in STRATEGIES if sharding == "none" or "pp" not in one]
    by_rank = run_ranks(4, sample, strategies, temperature, sharding, frozen)
    (first, expected), *others = by_rank
    assert len(set("".join(expected))) > 3
    for samples in first:
        assert samples.step == STEP
        assert [one.prompt for one in samples.texts] == list(PROMPTS)
        assert [one.text for one in samples.texts] == expected
    assert all(found == first for found, _ in others)


def test_a_continuation_ends_before_the_final_token() -> None:
    whole = run_ranks(2, sample_until, "")[0]
    eos = next(one for one in whole[0] if one.isascii())
    assert run_ranks(2, sample_until, eos)[0] == [one.split(eos)[0] for one in whole]


@pytest.mark.parametrize(("every", "due"), [(None, []), (3, [3, 6, 9, 10]), (20, [10])])
def test_samples_are_made_at_their_interval_and_at_the_end(every: int | None, due: list[int]) -> None:
    assert run_ranks(2, due_steps, every) == [due] * 2
