"""Runs on several ranks by the command: refused, failing, and complete."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers import ROOT, lacks
from hydraulis import Plan
from hydraulis.config.run import load
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.planner.profile import load_profile
from profiles import made_up_profile
from ranks import run_ranks
from runtime.tiny import CAPS
from train.small_run import STEPS, read_lines, write_config
from train.train_workers import Ended, run_commands, run_where_files_fail


class Refusal(NamedTuple):
    """An override, and the expected error."""

    override: str
    code: str
    says: str


PROFILED = 'planner.profile="PROFILE"'
MEASURED = 'planner.profile="MEASURED"'
REFUSALS = (
    Refusal(
        'planner.strategies=["1x<tp2>+1x<1>"]', "strategy_unplaceable", "needs 3 GPUs, the cluster has 2"
    ),
    Refusal('planner.strategies=["1x<tp3>"]', "strategy_unplaceable", "needs 3 GPUs"),
    Refusal('planner.strategies=["two of them"]', "strategy_invalid", "two of them"),
    Refusal(
        'planner.strategies=["1x<tp2>"]\0model.num_attention_heads=1\0model.num_key_value_heads=1',
        "scheme_model_mismatch",
        "'1x<tp2>' of planner.strategies: tensor degree tp = 2 does not divide num_attention_heads = 1",
    ),
    Refusal(
        'planner.strategies=["1x<cp2>"]\0model.num_attention_heads=1\0model.num_key_value_heads=1',
        "scheme_model_mismatch",
        "cp = 2 of scheme <cp2> is above its limit of 1",
    ),
    Refusal(
        'planner.strategies=["1x<cp2>"]\0planner.profile=""\0planner.context="ulysses"\0'
        "model.num_attention_heads=1\0model.num_key_value_heads=1",
        "scheme_model_mismatch",
        "or ring attention",
    ),
    Refusal('planner.context="both"', "config_value", "planner.context"),
    Refusal('planner.strategies=["1x<pp2>"]\0model.num_hidden_layers=1', "scheme_model_mismatch", "1 layers"),
    Refusal("data.max_tokens=90", "sequence_too_long", "90 tokens, and no strategy admits more than 64"),
    Refusal(
        'planner.strategies=["1x<tp2,selective>"]',
        "scheme_unknown",
        "scheme <tp2,selective> is not in cost profile",
    ),
    Refusal(
        'planner.profile="MEASURED"\0model.hidden_size=64',
        "profile_mismatch",
        "hidden_size 32, and the run has 64",
    ),
    Refusal(
        'planner.profile="MEASURED"\0train.dtype="bfloat16"',
        "profile_mismatch",
        "dtype float32, and the run has bfloat16",
    ),
    Refusal('planner.profile="nowhere.json"', "file_unreadable", "nowhere.json"),
    Refusal('planner.strategies=["2x<1>"]\0planner.profile="WITHOUT"', "scheme_unknown", "<1>"),
    Refusal('output.directory="FILE/run"', "file_unwritable", "FILE/run"),
    Refusal('output.directory="/proc/run"', "file_unwritable", "'/proc' cannot be written"),
    # Tens of terabytes, which are counted before any allocation.
    Refusal(
        "model.hidden_size=524288\0model.intermediate_size=1048576",
        "file_unwritable",
        "MiB of room, and a checkpoint takes",
    ),
    Refusal('output.directory="."', "file_unwritable", "name a new folder"),
    Refusal('planner.profile=""\0planner.memory_mib=1\0model.hidden_size=256', "scheme_too_large", "<1>"),
    # Refused before times are measured, which would take longer than this test waits.
    Refusal(
        'planner.profile=""\0planner.memory_mib=1\0planner.profile_seconds=10000\0data.max_tokens=4096',
        "sequence_too_long",
        "and no strategy admits more than",
    ),
    Refusal(
        'planner.profile=""\0planner.profile_seconds=10000\0data.max_tokens=4096\0'
        'samples.every=3\0samples.prompts=["ab"]\0samples.tokens=4000',
        "sequence_too_long",
        "4,002 tokens, and no strategy admits more than",
    ),
)


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Ended]]]:
    """Run the command with every override on two ranks, in a folder without a run."""
    folder = tmp_path_factory.mktemp("refused")
    config = str(write_config(folder))
    (folder / "FILE").write_text("")
    (folder / "PROFILE").write_text(made_up_profile(CAPS).to_json())
    measured = json.loads(made_up_profile(CAPS).to_json())
    measured |= {"model": json.loads(build_model_shape(load(config).model).to_json()), "dtype": "float32"}
    (folder / "MEASURED").write_text(json.dumps(measured))
    (folder / "WITHOUT").write_text(made_up_profile({"<tp2>": 64}).to_json())
    small = [PROFILED, "data.max_tokens=64", "data.tokens_per_batch=120"]
    commands = []
    for refusal in REFUSALS:
        overrides = "\0".join((*small, refusal.override))
        for name in ("PROFILE", "MEASURED", "WITHOUT", "FILE"):
            overrides = overrides.replace(f'"{name}', f'"{folder}/{name}')
        commands.append([config, *(part for one in overrides.split("\0") for part in ("--set", one))])
    return folder, run_ranks(2, run_commands, commands)


@pytest.mark.parametrize("number", range(len(REFUSALS)), ids=[refusal.code for refusal in REFUSALS])
def test_a_refusal_ends_every_rank_and_is_reported_once(
    refused: tuple[Path, list[list[Ended]]], number: int
) -> None:
    first, second = (of_rank[number] for of_rank in refused[1])
    assert (first.code, second.code) == (2, 2)
    assert first.err.startswith(f"hydraulis.train: error [{REFUSALS[number].code}]: ")
    assert first.err.count("\n") == 1
    assert REFUSALS[number].says in first.err
    assert second.err == second.out == ""


def test_a_refusal_writes_nothing(refused: tuple[Path, list[list[Ended]]]) -> None:
    folder, _ = refused
    assert {path.name for path in folder.iterdir()} == {"run.toml", "FILE", "PROFILE", "MEASURED", "WITHOUT"}


def test_room_for_all_checkpoints_is_checked_after_the_data_are_read(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    text = path.read_text().replace(f"steps = {STEPS}\n", "epochs = 10_000\n")
    path.write_text(f"{text}[checkpoint]\nevery_steps = 1\nkeep = 0\n")
    # Parameters are counted but not allocated: one checkpoint fits on the disk, thousands do not.
    larger = ["--set", "model.hidden_size=1024", "--set", "model.intermediate_size=4096"]
    ((first,), (second,)) = run_ranks(2, run_commands, [[str(path), *larger]])
    assert (first.code, second.code) == (2, 2)
    refusal = first.err.splitlines()[-1]
    assert refusal.startswith("hydraulis.train: error [file_unwritable]: ")
    assert lacks(refusal, "checkpoint.keep", "output.directory") == []
    assert not (tmp_path / "run").exists()


def test_a_run_over_context_ranks_measures_and_trains(tmp_path: Path) -> None:
    overrides = [
        'planner.strategies=["1x<cp2,selective>"]',
        "data.tokens_per_batch=120",
        "data.max_tokens=64",
        # Long enough for medians: a single pass over times this small may not fit the cost model.
        "planner.profile_seconds=5",
    ]
    arguments = [str(write_config(tmp_path)), *(part for one in overrides for part in ("--set", one))]
    own_data = [f'planner.profile="{tmp_path}/run/profile.json"', 'data.chat_template="chatml"']
    chats = (ROOT / "examples/chat.jsonl").read_text()
    (tmp_path / "chat.jsonl").write_text(f"no JSON\n{chats}")
    own_data += [
        f'data.sources=[{{files=["{tmp_path}/chat.jsonl"], format="chat"}}]',
        "data.broken_records=skip",
    ]
    own_data += ["data.held_out=0.3"]
    own_data += [f'data.index_directory="{tmp_path}/index"']
    own_data += ["train.steps=100", "train.epochs=2"]
    own = [*arguments, *(part for one in own_data for part in ("--set", one))]
    looking = ['planner.strategies=["search"]', "planner.checkpointing=none;full", "planner.recalibrate=0.5"]
    looking += ["train.profile_steps=[2]", "samples.every=3", "samples.prompts=['ab']", "samples.tokens=5"]
    looking += ["planner.max_strategies=2", "planner.link='1,1,5'", "planner.layer_plans=1"]
    search = [*arguments, *(part for one in looking for part in ("--set", one))]
    (first, chat, free), (second, _, _) = run_ranks(2, run_commands, [arguments, own, search])
    assert (first.code, second.code, chat.code) == (0, 0, 0), first.err + chat.err
    assert free.code == 0, free.err
    assert "not compared: planner.recalibrate" in free.out
    assert 'step 3: "ab" continues "' in free.out
    assert "times as long" in first.out
    assert f"1 broken record left out: file '{tmp_path}/chat.jsonl', line 1 is no JSON" in chat.out
    check_run_on_chats(tmp_path / "run-2")
    check_searched_run(tmp_path / "run-3")
    plans = [Plan.from_json(json.dumps(plan)) for plan in read_lines(tmp_path / "run" / "plans.jsonl")]
    assert [plan.replicas[0].context for plan in plans] == ["ring"] * STEPS
    assert load_profile(tmp_path / "run" / "profile.json").schemes == ["<cp2,selective>"]


def check_searched_run(directory: Path) -> None:
    """Links are measured, few strategies used, transfers planned, times recalibrated, a step profiled, and
    texts sampled.
    """
    assert [line["step"] for line in read_lines(directory / "samples.jsonl")] == [3, STEPS]
    recorded = sorted(path.name for path in (directory / "profiler").iterdir())
    assert recorded == [f"step-00000002-rank-0000{rank}.json" for rank in range(2)]
    assert (directory / "times.jsonl").read_text().splitlines()[1] == "null"
    profile = load_profile(directory / "profile.json")
    mixed = [text for text in profile.schemes if ":" in text]
    uniform = [text for text in profile.schemes if ":" not in text]
    assert set(uniform) == {
        f"<{degrees}{kind}>" for degrees in ("1", "tp2", "cp2", "pp2") for kind in ("", ",full")
    }
    assert mixed
    assert {link["ranks"] for link in json.loads(profile.to_json())["hardware"]["links"]} == {2}
    plans = [Plan.from_json(json.dumps(plan)) for plan in read_lines(directory / "plans.jsonl")]
    assert 1 <= len({plan.strategy for plan in plans}) <= 2
    assert all(plan.transfer_ms is not None for plan in plans)
    lines = read_lines(directory / "calibrations.jsonl")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    learnt = [line["factors"] for line in lines]
    used = {str(replica.scheme) for plan in plans for replica in plan.replicas if replica.micro_batches}
    assert learnt[-1].keys() == used
    assert all(0.5 <= factor <= 2 for factor in learnt[-1].values())


def check_run_on_chats(directory: Path) -> None:
    """Three split conversations are trained twice on the assistant's words; one is held out."""
    facts = json.loads((directory / "corpus.json").read_text())
    assert (facts["documents"], facts["held_out"]) == (3, 1)
    assert (facts["too_long"], facts["broken_records"]) == (3, 1)
    assert 0 < facts["targets"] < facts["tokens"]
    plans = [Plan.from_json(json.dumps(plan)) for plan in read_lines(directory / "plans.jsonl")]
    # Two epochs with each sequence once, and a smaller last batch.
    assert sum(int(plan.lengths.sum()) for plan in plans) == 2 * facts["tokens"]
    assert sum(len(plan.lengths) for plan in plans) == 2 * facts["sequences"]
    assert json.loads((directory / "config.json").read_text())["train"]["steps"] == len(plans)
    assert all(0 < plan.targets.sum() < plan.lengths.sum() - len(plan.lengths) for plan in plans)


def test_files_that_fail_end_every_rank(tmp_path: Path) -> None:
    (tmp_path / "PROFILE").write_text(made_up_profile(CAPS).to_json())
    overrides = (f'planner.profile="{tmp_path}/PROFILE"', "data.max_tokens=64", "data.tokens_per_batch=120")
    options = [part for override in overrides for part in ("--set", override)]
    ended = run_ranks(2, run_where_files_fail, tmp_path, [str(write_config(tmp_path)), *options])
    says = (
        "[folder_not_shared]: rank 1 on ",
        "[file_unwritable]: no space left",
    )
    for first, second, said in zip(*ended, says, strict=True):
        assert (first.code, second.code) == (2, 2)
        assert first.err.startswith(f"hydraulis.train: error {said}")
        assert second.err == ""
    # The position is reported after the first step only.
    assert "failed after" not in ended[0][0].out
    last = ended[0][1].out.splitlines()[-1]
    assert last.startswith(f"failed after step 1 of {STEPS}; no checkpoint is complete: ")
    # The checks leave no file, and no step is trained without a way to keep its state.
    assert not (tmp_path / "node-1/run").exists()
    assert not any(one.name.startswith(".shared") for one in (tmp_path / "node-0/run").iterdir())
    assert not (tmp_path / "node-0/run/metrics.jsonl").exists()
