"""README's and docs/planning.md's Python runs, and its comments hold; every other page names its test."""

import ast
import re
from typing import Any

import numpy as np
import pytest

import hydraulis
from docs import test_checkpoints_page, test_commands, test_data_page, test_drop_in_page
from docs.page import blocks
from helpers import ROOT, at_least
from hydraulis import Cluster, CostProfile
from hydraulis.batching import BalancedBatchSampler

# The test that runs the Python of each page.
RUN_BY = {
    "README.md": "here",
    "docs/checkpoints.md": test_checkpoints_page.__name__,
    "docs/data.md": test_data_page.__name__,
    "docs/drop-in.md": test_drop_in_page.__name__,
    "docs/planning.md": "here",
    "docs/tutorial.md": test_commands.__name__,
}


HERE = [page for page, test in RUN_BY.items() if test == "here"]


def given() -> dict[str, Any]:
    """Make the values that the pages name and leave to the reader."""
    generator = np.random.default_rng(0)
    batches = [generator.lognormal(6.2, 1.2, 150).astype(int).clip(1, 32_768) for _ in range(4)]
    return {
        "batches": batches,
        "lengths": np.concatenate(batches),
        "rank": 63,
        "profile": CostProfile.preset("llama-32b-a800"),
        "cluster": Cluster(gpus=64, gpus_per_node=8),
    }


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Run all blocks of both pages in order; give the names that they define."""
    found = given()
    for page in HERE:
        for block in at_least(1, [block for block in blocks(page) if block.kind == "python"]):
            exec(compile(block.body, page, "exec"), found)
    return found


def test_a_plan_gives_the_place_of_each_sequence(names: dict[str, Any]) -> None:
    lengths = [31_000, 12_000, 900, 900, 450, 80]
    fresh = names["planner"].plan(lengths)
    micro_batches = [one for replica in fresh.replicas for one in replica.micro_batches]
    assert sorted(sequence for one in micro_batches for sequence in one) == list(range(len(lengths)))


def test_loss_weights_of_the_page_are_those_of_the_sampler() -> None:
    found = given() | {"lengths": np.random.default_rng(0).lognormal(6, 1, 300).astype(int).clip(1, 32_768)}
    body = next(one.body for one in blocks("docs/planning.md") if "shared = balance(" in one.body)
    exec(compile(body, "docs/planning.md", "exec"), found)
    sampler = BalancedBatchSampler(
        found["lengths"],
        cap_tokens=32_768,
        cost=(24_576, 1),
        ranks=64,
        sequences_per_step=300,
        shuffle=False,
    )
    assert sorted(found["shared"].loss_weights) == pytest.approx(sorted(sampler.step(0).loss_weights))


def test_a_lookahead_gives_the_original_batch_of_each_sequence(names: dict[str, Any]) -> None:
    batches, lookahead = names["batches"], names["lookahead"]
    assert len(lookahead) == len(batches)
    came = set()
    for plan, members in zip(lookahead.plans, lookahead.members, strict=True):
        assert [batches[batch][place] for batch, place in members] == plan.lengths.tolist()
        came |= {tuple(one) for one in members.tolist()}
    assert len(came) == sum(map(len, batches))


def test_the_last_replica_has_micro_batches_under_the_cap(names: dict[str, Any]) -> None:
    lengths, shared = names["lengths"], names["shared"]
    assert len(shared.micro_batches) == 64
    every = [sequence for replica in shared.micro_batches for one in replica for sequence in one]
    assert sorted(every) == list(range(len(lengths)))
    assert all(
        lengths[np.array(one, dtype=int)].sum() <= 32_768
        for replica in shared.micro_batches
        for one in replica
    )
    assert shared.gap >= 0


def test_calls_within_the_text_are_valid(names: dict[str, Any]) -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in HERE)
    public = {name: getattr(hydraulis, name) for name in hydraulis.__all__}
    # `plan` is the last one that a page made; any plan will do.
    called = [call for call in re.findall(r"(?<!`)`([a-z_.]+\([^`]*\))`", text) if "..." not in call]
    for call in at_least(3, called):
        assert isinstance(ast.parse(call, mode="eval").body, ast.Call)
        assert eval(call, public | names) is not None, call


def test_the_python_of_every_page_is_run_by_a_test() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = {
        str(path.relative_to(ROOT))
        for path in at_least(15, pages)
        if "```python\n" in path.read_text("utf-8")
    }
    assert found == RUN_BY.keys()
