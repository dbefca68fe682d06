"""Copies of the state in memory: equal to the shards to the bit, and re-cut for other ranks."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import at_least, lacks
from hydraulis.config.lora import Adapters
from hydraulis.config.optimizer import OptimizerConfig
from ranks import run_ranks
from runtime.one_process import OPTIMIZER, batches, model_config
from runtime.recovery.keeper_workers import (
    GROUP,
    Setting,
    Whole,
    fail_to_write,
    keep_and_end,
    keep_steps,
    lose_copies,
    recover,
)

STRATEGIES = ("2x<tp2>", "1x<pp4>", "1x<tp2,pp2>", "1x<cp2>+2x<1>", "4x<1>", "1x<tp4>")
FROZEN = ("model.embed_tokens.*", "model.layers.[01].*")
ADAPTERS = Adapters(rank=2, alpha=4.0, targets=("q_proj", "up_proj"))
SETTINGS = {
    "all trained": Setting(model_config(), OPTIMIZER, STRATEGIES),
    "tied, some frozen": Setting(model_config(tie_word_embeddings=True), OPTIMIZER, STRATEGIES, FROZEN),
    "bfloat16, some frozen": Setting(
        model_config(tie_word_embeddings=True), OPTIMIZER, STRATEGIES, FROZEN, torch.bfloat16
    ),
    "adapters": Setting(
        model_config(adapters=Adapters(rank=2, alpha=4.0, targets=("q_proj", "up_proj"))),
        OPTIMIZER,
        STRATEGIES,
    ),
    "shards that fit the local ones": Setting(model_config(), OPTIMIZER, ("4x<1>", "2x<cp2>")),
    "without moments": Setting(model_config(), OptimizerConfig(name="sgd", learning_rate=1e-2), STRATEGIES),
    "one moment": Setting(model_config(), OptimizerConfig(name="adagrad", learning_rate=1e-2), STRATEGIES),
}


def steps_of(setting: Setting, count: int, seed: int = 0) -> list[tuple[str, Any]]:
    strategies = random.Random(seed).choices(setting.schemes, k=count)
    return list(zip(strategies, batches(count, setting.config.vocab_size), strict=True))


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of a run and of the copies."""
    run, base = tmp_path / "run", tmp_path / "memory"
    run.mkdir()
    base.mkdir()
    return run, base


@pytest.mark.parametrize("name", SETTINGS)
def test_copies_and_twins_equal_the_shards_after_each_step(places: tuple[Path, Path], name: str) -> None:
    setting = SETTINGS[name]
    results = run_ranks(4, keep_steps, *places, setting, steps_of(setting, 4), ranks_per_node=2)
    for kept, beyond, left in results:
        assert [one.steps for one in kept] == [[1], [1, 2], [2, 3], [3, 4]]
        assert all(one.own and one.twin for one in kept)
        # The bytes of two copies, and of the frozen parameters once, as announced.
        assert beyond == 0
        assert left == []
    assert all(any(kept[step].moved for kept, _, _ in results) for step in range(4))


def test_one_node_has_no_twins(places: tuple[Path, Path]) -> None:
    setting = SETTINGS["all trained"]
    for kept, beyond, left in run_ranks(4, keep_steps, *places, setting, steps_of(setting, 3)):
        assert [one.twin for one in kept] == [None] * 3
        assert all(one.own for one in kept)
        assert (beyond, left) == (0, [])


@pytest.fixture
def kept(places: tuple[Path, Path]) -> Whole:
    """Return the state of four ranks that were killed after three steps."""
    setting = SETTINGS["bfloat16, some frozen"]
    result: Whole = run_ranks(4, keep_and_end, *places, setting, steps_of(setting, 3), ranks_per_node=2)[0]
    return result


def assert_same(recovered: Whole, kept: Whole) -> None:
    assert recovered.step == kept.step
    assert recovered.state.keys() == kept.state.keys()
    for buffer, tensors in kept.state.items():
        assert tensors is not None
        found = recovered.state[buffer]
        assert found is not None
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(found[name], tensor), (buffer, name)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_takes_the_state_from_memory(
    places: tuple[Path, Path], kept: Whole, ranks: int
) -> None:
    setting = SETTINGS["bfloat16, some frozen"]._replace(schemes=("1x<1>",))
    of_ranks = run_ranks(ranks, recover, *places, setting)
    assert_same(of_ranks[0], kept)
    assert of_ranks[0].group == GROUP
    # All copies are on the ranks' own node.
    assert [recovered.received for recovered in of_ranks] == [0] * ranks


def test_a_parameter_may_be_frozen_in_between(places: tuple[Path, Path], kept: Whole) -> None:
    setting = SETTINGS["bfloat16, some frozen"]
    more = setting._replace(schemes=("1x<tp2>",), frozen=(*FROZEN, "model.layers.2.*"))
    recovered: Whole = run_ranks(2, recover, *places, more)[0]
    before, now = (one.state["master"] for one in (kept, recovered))
    assert before is not None
    assert now is not None
    frozen = {name for name in before if name.startswith("layers.2.")}
    for name in at_least(5, before):
        # Frozen parameters have the model's type.
        expected = before[name].bfloat16().float() if name in frozen else before[name]
        assert torch.equal(now[name], expected), name
    moments = recovered.state["exp_avg"]
    assert moments is not None
    assert not frozen & moments.keys()
    assert frozen


def remove(base: Path, pattern: str) -> None:
    (folder,) = base.iterdir()
    found = list(folder.glob(pattern))
    assert found
    for path in found:
        path.unlink()


def test_twins_replace_the_shards_of_a_lost_node(places: tuple[Path, Path], kept: Whole) -> None:
    # The node of ranks 2 and 3, with its twins of ranks 0 and 1.
    remove(places[1], "*.by-0000[23].*")
    setting = SETTINGS["bfloat16, some frozen"]._replace(schemes=("1x<tp2>",))
    assert_same(run_ranks(2, recover, *places, setting)[0], kept)


def test_ranks_exchange_what_only_other_nodes_have(places: tuple[Path, Path], kept: Whole) -> None:
    # Each node has no copy but its own shards.
    for shard in range(4):
        remove(places[1], f"*.shard-0000{shard}-*.by-0000{(shard + 2) % 4}.*")
    setting = SETTINGS["bfloat16, some frozen"]
    # Each rank has its own shard on its node; for another number of ranks shards are cut again.
    for ranks in (4, 3):
        of_ranks = run_ranks(ranks, recover, *places, setting, 2, ranks_per_node=2 if ranks == 4 else 1)
        assert_same(of_ranks[0], kept)
        assert any(recovered.received for recovered in of_ranks) == (ranks == 3)


@pytest.mark.parametrize("blind", [None, 1])
def test_a_new_node_receives_its_shards_from_the_twins(
    places: tuple[Path, Path], kept: Whole, blind: int | None
) -> None:
    # The memory of ranks 2 and 3 is lost. They receive from the ranks of their places, or all from rank 0 if
    # rank 1 sees no file.
    remove(places[1], "*.by-0000[23].*")
    setting = SETTINGS["bfloat16, some frozen"]
    of_ranks = run_ranks(4, recover, *places, setting, 2, blind, ranks_per_node=2)
    assert_same(of_ranks[0], kept)
    assert [recovered.received > 0 for recovered in of_ranks] == [False, blind == 1, True, True]


@pytest.mark.usefixtures("kept")
def test_an_older_whole_copy_replaces_a_newer_one_with_a_gap(places: tuple[Path, Path]) -> None:
    remove(places[1], "step-00000003.shard-00001-*")
    setting = SETTINGS["bfloat16, some frozen"]._replace(schemes=("1x<tp2>",))
    assert [recovered.step for recovered in run_ranks(2, recover, *places, setting)] == [2, 2]


def flip(base: Path, pattern: str) -> None:
    """Change one bit in the middle of each file, which is in a tensor."""
    (folder,) = base.iterdir()
    for path in at_least(1, folder.glob(pattern)):
        content = bytearray(path.read_bytes())
        content[-len(content) // 4] ^= 1
        path.write_bytes(content)


def test_a_damaged_copy_counts_as_lost(places: tuple[Path, Path], kept: Whole) -> None:
    flip(places[1], "step-00000003.shard-00001-*.by-00001.*")
    (places[1] / next(places[1].iterdir()) / "frozen.shard-00002-of-00004.by-00000.safetensors").write_bytes(
        b"x"
    )
    setting = SETTINGS["bfloat16, some frozen"]._replace(schemes=("1x<tp2>",))
    for recovered in run_ranks(2, recover, *places, setting):
        assert "step-00000003.shard-00001-of-00004.by-00001" in recovered.messages[0]
        assert recovered.step == 3
    # Only rank 0 has the whole state.
    assert_same(run_ranks(2, recover, *places, setting)[0], kept)
    flip(places[1], "step-00000003.shard-00001-*.by-00003.*")
    assert [recovered.step for recovered in run_ranks(2, recover, *places, setting)] == [2, 2]


@pytest.mark.parametrize("kind", ["step-*", "frozen"])
def test_a_shard_lost_with_its_twin_is_named(places: tuple[Path, Path], kept: Whole, kind: str) -> None:
    assert kept.step == 3
    remove(places[1], f"{kind}.shard-00001-*")
    setting = SETTINGS["bfloat16, some frozen"]._replace(schemes=("1x<tp2>",))
    for recovered in run_ranks(2, recover, *places, setting):
        assert recovered.step is None
        (message,) = recovered.messages
        assert "shard 1 of 4" in message


def test_a_copied_folder_does_not_take_the_copies_of_the_original(
    places: tuple[Path, Path], kept: Whole
) -> None:
    run, base = places
    copied = Path(shutil.copytree(run, run.with_name("copied")))
    setting = SETTINGS["bfloat16, some frozen"]._replace(schemes=("1x<tp2>",))
    for recovered in run_ranks(2, recover, copied, base, setting):
        assert recovered.step is None
        (message,) = recovered.messages
        assert message.endswith(f"they are those of {run}")
    assert_same(run_ranks(2, recover, *places, setting)[0], kept)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("when", ["manifest", "values"])
def test_copies_that_another_run_removes_meanwhile_end_the_start_on_all_ranks(
    places: tuple[Path, Path], when: str
) -> None:
    setting = SETTINGS["bfloat16, some frozen"]
    (path,) = places[1].iterdir()
    for code, message in run_ranks(4, lose_copies, *places, setting, when, ranks_per_node=2):
        assert code == "checkpoint_missing"
        assert lacks(message, path, "was removed", "checkpoint.memory_folder", "start again") == []


def test_a_rank_that_cannot_write_ends_the_copies_and_not_the_run(places: tuple[Path, Path]) -> None:
    setting = SETTINGS["all trained"]
    results = run_ranks(4, fail_to_write, *places, setting, steps_of(setting, 4), ranks_per_node=2)
    for messages, left, starts in results:
        (message,) = messages
        assert "rank 1 cannot write: no space left on device" in message
        assert (left, starts) == ([], [])
