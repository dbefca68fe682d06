"""A run that is resumed is the run that was never stopped; whatever does not belong to it is refused."""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers import at_least, lacks
from hydraulis import Cluster, Plan
from hydraulis.config.run import load
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.errors import InvalidInputError
from hydraulis.files import with_digest
from hydraulis.preflight.finding import Finding
from hydraulis.preflight.run import preflight
from hydraulis.report.imbalance import balances
from hydraulis.report.run import read_run
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from hydraulis.runtime.checkpoint.manifest import MANIFEST
from hydraulis.runtime.checkpoint.resume import newest_of
from hydraulis.runtime.records.run_lock import RunLock
from profiles import made_up_profile
from ranks import run_ranks
from runtime.tiny import CAPS
from small_model import TINY_SECTION
from train.train_workers import Ended, load_made_up, run_commands

STEPS = 7
STOPPED = 4
CONFIG = (
    TINY_SECTION
    + """
[data]
max_tokens = 64
tokens_per_batch = 120

[train]
steps = {steps}
timeout_s = 60

[optimizer]
learning_rate = 1e-2
warmup_steps = 6

[planner]
memory_mib = 6
strategies = ["2x<1>", "1x<tp2>"]
profile = "{folder}/profile.json"

[checkpoint]
every_steps = 3
keep = 0

[output]
directory = "{folder}/run"
"""
)


@pytest.fixture(autouse=True)
def corpus_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check in this process reads the corpus that the ranks read."""
    monkeypatch.setattr(StandardLibrary, "load", load_made_up)


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def plans(run: Path) -> list[Plan]:
    return [Plan.from_json(line) for line in (run / "plans.jsonl").read_text().splitlines()]


def command(config: Path, *overrides: str, resume: str = "") -> list[str]:
    options = [part for override in overrides for part in ("--set", override)]
    return [str(config), *options, *(["--resume", resume] if resume else [])]


class Runs(NamedTuple):
    """A run that was never stopped, and one that was: it ended early, wrote lines more, and was resumed."""

    folder: Path
    ended: list[list[Ended]]

    @property
    def whole(self) -> Path:
        return self.folder / "run"

    @property
    def resumed(self) -> Path:
        return self.folder / "run-2"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("resume")
    config = folder / "run.toml"
    config.write_text(CONFIG.format(steps=STEPS, folder=folder))
    (folder / "profile.json").write_text(made_up_profile(CAPS).to_json())
    begun = [
        command(config, resume="latest"),
        command(config, f"train.steps={STOPPED}"),
    ]
    ended = run_ranks(2, run_commands, begun)
    # As if it had been killed in its sixth step, while a line was being written.
    later = (folder / "run" / "metrics.jsonl").read_text().splitlines()[STOPPED : STOPPED + 2]
    with (folder / "run-2" / "metrics.jsonl").open("a") as metrics:
        metrics.write("\n".join(later)[:-9])
    (CheckpointFolder.of_run(folder / "run-2").begin(5) / "state.safetensors").write_text("torn")
    shutil.copytree(folder / "run-2", folder / "stopped")
    # Without the configuration's profile it is the run's own that counts.
    again = [command(config, 'planner.profile=""', resume="latest")]
    ended = [first + more for first, more in zip(ended, run_ranks(2, run_commands, again), strict=True)]
    return Runs(folder, ended)


def test_check_reads_the_folder_and_the_profile_of_the_resumed_run(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = runs.folder / "stopped"
    # Where a new run would have its folder is of no interest.
    overrides = [f'checkpoint.resume="{stopped}"', 'planner.profile=""', "output.directory=/dev/null/run"]

    def looks(*more: str) -> dict[str, tuple[str, str]]:
        config = load(runs.folder / "run.toml", [*overrides, *more])
        return {one.name: (one.status, one.text) for one in preflight(config, Cluster(2, 2))}

    found = looks()
    assert found["profile"] == ("ok", f"made-up of none, that of {stopped}")
    assert found["output"][1].startswith(f"{stopped} can be written")
    # Its profile was measured otherwise, so a new one is.
    assert looks("planner.strategies=1x<tp2,selective>")["profile"][0] == "later"

    # Root may write where others may not.
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    status, text = looks()["output"]
    assert status == "refused"
    assert lacks(text, stopped, "Permission denied") == []


def test_check_opens_no_model_where_the_run_begins_from_a_checkpoint(runs: Runs, tmp_path: Path) -> None:
    def model(resume: str) -> tuple[str, str | None, str]:
        overrides = [f'checkpoint.weights="{tmp_path}/gone"', f'checkpoint.resume="{resume}"']
        config = load(runs.folder / "run.toml", [*overrides, f'output.directory="{tmp_path}/run"'])
        (look,) = (one for one in preflight(config, Cluster(2, 2)) if one.name == "model")
        return look.status, look.code, look.text

    status, _, text = model(str(runs.folder / "stopped"))
    assert status == "ok"
    assert text.endswith("; read from the resumed run's checkpoint")
    for begins in ("", "latest"):
        assert model(begins)[:2] == ("refused", "weights_invalid")
    # Refused in the line of the checkpoint alone.
    assert model(str(tmp_path))[0] == "ok"


@pytest.mark.parametrize("kind", ["torn", "thawed", "busy"])
def test_check_refuses_the_same_runs_as_training(runs: Runs, tmp_path: Path, kind: str) -> None:
    run = tmp_path / kind
    shutil.copytree(runs.folder / "stopped", run)
    damage(run, kind)
    config = load(runs.folder / "run.toml", [f'checkpoint.resume="{run}"'])
    locks = [RunLock(run)] if kind == "busy" else []
    (resume,) = (one for one in preflight(config, Cluster(2, 2)) if one.name == "resume")
    for lock in locks:
        lock.release()
    assert (resume.status, resume.code) == ("refused", REFUSALS[kind].code)
    assert REFUSALS[kind].says in resume.text


def test_a_step_beyond_the_run_is_not_searched_for_in_the_data(runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "beyond"
    shutil.copytree(runs.folder / "stopped", run)
    checkpoint = CheckpointFolder.of_run(run).newest()
    assert checkpoint is not None
    beyond = checkpoint.rename(checkpoint.with_name(f"step-{10**18}"))
    document = json.loads((beyond / MANIFEST).read_text())
    del document["digest"]
    (beyond / MANIFEST).write_text(with_digest(document | {"step": 10**18}))
    config = load(runs.folder / "run.toml", [f'checkpoint.resume="{run}"'])
    (resume,) = (one for one in preflight(config, Cluster(2, 2)) if one.name == "resume")
    assert resume.status == "warning"
    assert f"{10**18:,} steps are done and {STEPS:,} wanted" in resume.text


def test_a_run_with_frozen_parameters_goes_on_with_sharded_ones(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(steps=STEPS, folder=tmp_path))
    caps = {scheme: cap for scheme, cap in CAPS.items() if "pp" not in scheme}
    profile = json.loads(made_up_profile(caps).to_json())
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    (tmp_path / "sharded.json").write_text(json.dumps(profile | {"sharding": "parameters"}))
    frozen = 'train.frozen=["model.embed_tokens.*", "model.layers.0.*", "*mlp*"]'
    sharded = [f'planner.profile="{tmp_path}/sharded.json"', 'train.sharding="parameters"']
    commands = [
        command(config, frozen),
        command(config, frozen, f"train.steps={STOPPED}"),
        command(config, frozen, *sharded, resume="latest"),
    ]
    for rank in run_ranks(2, run_commands, commands):
        assert [ended.code for ended in rank] == [0, 0, 0], rank
    folders = (tmp_path / "run", tmp_path / "run-2")
    whole, resumed = ([line["loss"] for line in lines(run, "metrics.jsonl")] for run in folders)
    assert len(resumed) == STEPS
    assert resumed == pytest.approx(whole, rel=1e-5)


def test_a_resumed_run_succeeds_and_reports_its_first_step(runs: Runs) -> None:
    for rank in runs.ended:
        assert [ended.code for ended in rank] == [0, 0, 0], rank
    started, _, resumed = runs.ended[0]
    assert "no checkpoint to resume from: starting a new run" in started.out
    assert f"resuming after step {STOPPED} of {runs.resumed}" in resumed.out
    assert f"{STEPS - STOPPED} steps from step {STOPPED + 1} on, each with its own plan" in resumed.out
    assert sorted(path.name for path in runs.folder.iterdir()) == [
        "profile.json",
        "run",
        "run-2",
        "run.toml",
        "stopped",
    ]


def test_a_resumed_run_has_the_same_losses_to_the_bit_and_the_same_plans(runs: Runs) -> None:
    whole, resumed = (lines(run, "metrics.jsonl") for run in (runs.whole, runs.resumed))
    assert [line["step"] for line in resumed] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in resumed] == [line["loss"] for line in whole]
    assert (runs.whole / "plans.jsonl").read_bytes() == (runs.resumed / "plans.jsonl").read_bytes()


def test_a_resumed_run_ends_in_the_same_state(runs: Runs) -> None:
    checkpoints = [CheckpointFolder.of_run(run).complete() for run in (runs.whole, runs.resumed)]
    assert [path.name for path in checkpoints[0]] == ["step-00000003", "step-00000006", "step-00000007"]
    assert [path.name for path in checkpoints[1]] == [
        "step-00000003",
        "step-00000004",
        "step-00000006",
        "step-00000007",
    ]
    one, other = (of_run[-1] for of_run in checkpoints)
    files = sorted(path.name for path in one.glob("*.safetensors"))
    assert files == ["state-00000-of-00002.safetensors", "state-00001-of-00002.safetensors"]
    for name in files:
        assert (one / name).read_bytes() == (other / name).read_bytes()
    configuration = json.loads((other / "config.json").read_text())
    assert configuration["planner"]["strategies"] == ["2x<1>", "1x<tp2>"]


def test_another_number_of_ranks_trains_on_the_same_batches(runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs.folder / "stopped", run)
    profile = tmp_path / "profile.json"
    profile.write_text(made_up_profile({"<1>": 64}).to_json())
    overrides = ('planner.strategies=["1x<1>"]', f'planner.profile="{profile}"')
    arguments = command(runs.folder / "run.toml", *overrides, resume=str(run))
    ((ended,),) = run_ranks(1, run_commands, [arguments])
    assert ended.code == 0, ended.err
    before, after = (plans(folder) for folder in (runs.whole, run))
    assert [plan.lengths.tolist() for plan in after] == [plan.lengths.tolist() for plan in before]
    assert [plan.cluster.gpus for plan in after] == [2] * STOPPED + [1] * (STEPS - STOPPED)
    losses = [[line["loss"] for line in lines(folder, "metrics.jsonl")] for folder in (runs.whole, run)]
    # In float32, whose sums are in another order.
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_with_fewer_strategies_the_report_still_reads_the_steps_before(runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs.folder / "stopped", run)
    assert {plan.strategy for plan in plans(run)} == {"1x<tp2>"}
    profile = tmp_path / "profile.json"
    profile.write_text(made_up_profile({"<1>": 64, "<tp2>": 64}).to_json())
    overrides = ('planner.strategies=["2x<1>"]', f'planner.profile="{profile}"')
    ended, _ = run_ranks(2, run_commands, [command(runs.folder / "run.toml", *overrides, resume=str(run))])
    assert ended[0].code == 0, ended[0].err
    assert {plan.strategy for plan in plans(run)[STOPPED:]} == {"2x<1>"}
    balance = balances(read_run(run))[-1]
    # The steps before have another profile, so they are shown and not compared.
    assert (balance.steps, balance.other_steps) == ([5, 6, 7], [1, 2, 3, 4])


def test_damaged_records_do_not_stop_a_run(runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs.folder / "stopped", run)
    metrics = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join([*metrics[:2], b"\0" * 200, b"\n"]))
    (run / "times.jsonl").unlink()
    for name in ("trace.json", "evaluations.jsonl", "calibrations.jsonl", "corpus.json", "profile.json"):
        (run / name).write_bytes(b"\xff\0\n")
    (CheckpointFolder.of_run(run).step(STOPPED) / "config.json").write_text("[]")
    ended, _ = run_ranks(2, run_commands, [command(runs.folder / "run.toml", resume=str(run))])
    assert ended[0].code == 0, ended[0].err
    assert f"metrics.jsonl lacks 2 steps of the {STOPPED} " in ended[0].out
    assert [line["step"] for line in lines(run, "metrics.jsonl")] == [1, 2, 5, 6, 7]
    whole = [line["loss"] for line in lines(runs.whole, "metrics.jsonl")]
    assert [line["loss"] for line in lines(run, "metrics.jsonl")] == [*whole[:2], *whole[STOPPED:]]
    plans_of = [plan.lengths.tolist() for plan in plans(runs.whole)]
    assert [plan.lengths.tolist() for plan in plans(run)] == [*plans_of[:2], *plans_of[STOPPED:]]


def test_a_finished_run_stays_unchanged(runs: Runs) -> None:
    files = [path for path in runs.whole.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in at_least(10, files)}
    # Nothing is measured for it either, though its profile has no such scheme.
    other = command(runs.folder / "run.toml", "planner.strategies=1x<tp2,full>", resume=str(runs.whole))
    (ended, as_json), _ = run_ranks(2, run_commands, [other, [*other, "--json"]])
    assert (ended.code, as_json.code) == (0, 0)
    assert "there is nothing left to train" in ended.out
    facts = {"num_steps": STEPS, "finished": True, "first_step": STEPS + 1, "steps": 0}
    assert json.loads(as_json.out) == {**facts, "files": []}
    assert {path: path.read_bytes() for path in runs.whole.rglob("*") if path.is_file()} == before


class Refusal(NamedTuple):
    """What does not go with the run, and what must come of it."""

    overrides: Sequence[str]
    code: str
    says: str


REFUSALS = {
    "seed": Refusal(["train.seed=5"], "checkpoint_mismatch", "train.seed = 0 and the run 5"),
    "batch": Refusal(["data.tokens_per_batch=60"], "checkpoint_mismatch", "data.tokens_per_batch = 120"),
    "longest": Refusal(["data.max_tokens=63"], "checkpoint_mismatch", "data.max_tokens = 64 and the run 63"),
    "corpus": Refusal(["data.held_out=0.1"], "checkpoint_mismatch", "(data.held_out was 0.0 and is 0.1)"),
    "model": Refusal(["model.hidden_size=32"], "checkpoint_mismatch", "model.hidden_size = 16"),
    "tied": Refusal(["model.tie_word_embeddings=true"], "checkpoint_mismatch", "tie_word_embeddings = false"),
    "dtype": Refusal(['train.dtype="float64"'], "checkpoint_mismatch", "train.dtype) = 'float32'"),
    "optimizer": Refusal(
        ['optimizer.name="lion"'],
        "checkpoint_mismatch",
        "(by optimizer.name) = ['exp_avg', 'exp_avg_sq'] and the run has ['exp_avg']",
    ),
    # By the name that train.frozen takes, which the manifest's is not.
    "thawed": Refusal([], "checkpoint_mismatch", "model.norm.weight is trained and was frozen"),
    "nowhere": Refusal([], "checkpoint_missing", "there is no folder "),
    "newer": Refusal([], "run_unreadable", "hydraulis.checkpoint/9"),
    "torn": Refusal([], "checkpoint_damaged", "state-00001-of-00002.safetensors is not whole"),
    "flipped": Refusal([], "checkpoint_damaged", "its content does not match its digest"),
    "order": Refusal([], "checkpoint_mismatch", "the next batch's digest"),
    "busy": Refusal([], "folder_busy", f"is being trained by process {os.getpid()} on "),
}


def damage(run: Path, kind: str) -> None:
    checkpoint = CheckpointFolder.of_run(run).newest()
    assert checkpoint is not None
    manifest = checkpoint / MANIFEST
    document = json.loads(manifest.read_text())
    del document["digest"]
    if kind == "nowhere":
        shutil.rmtree(run)
    elif kind == "thawed":
        (record,) = (one for one in document["parameters"] if one["name"] == "norm.weight")
        record["trained"] = False
        manifest.write_text(with_digest(document))
    elif kind == "newer":
        document["format"] = "hydraulis.checkpoint/9"
        manifest.write_text(with_digest(document))
    elif kind == "order":
        document["data"]["next_batch"] = "0" * 64
        manifest.write_text(with_digest(document))
    elif kind in ("torn", "flipped"):
        shard = checkpoint / "state-00001-of-00002.safetensors"
        content = shard.read_bytes()
        shard.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if kind == "flipped" else b""))


@pytest.fixture(scope="module")
def refused(
    runs: Runs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, tuple[Ended, Ended]]]:
    folder = tmp_path_factory.mktemp("refused")
    commands = []
    for kind, refusal in REFUSALS.items():
        run = folder / kind
        shutil.copytree(runs.folder / "stopped", run)
        damage(run, kind)
        commands.append(command(runs.folder / "run.toml", *refusal.overrides, resume=str(run)))
    lock = RunLock(folder / "busy")
    first, second = run_ranks(2, run_commands, commands)
    lock.release()
    return folder, {kind: (first[i], second[i]) for i, kind in enumerate(REFUSALS)}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_checkpoint_of_another_run_is_refused(
    runs: Runs, refused: tuple[Path, dict[str, tuple[Ended, Ended]]], kind: str
) -> None:
    folder, ended = refused
    first, second = ended[kind]
    assert (first.code, second.code) == (2, 2)
    assert first.err.startswith(f"hydraulis.train: error [{REFUSALS[kind].code}]: ")
    assert REFUSALS[kind].says in first.err
    assert second.err == ""
    # All but the shards is known before anything is made.
    assert (f"resuming after step {STOPPED} of " in first.out) == (kind in ("torn", "flipped"))
    if kind != "nowhere":
        metrics = (folder / kind / "metrics.jsonl").read_bytes()
        assert metrics == (runs.folder / "stopped" / "metrics.jsonl").read_bytes()


def test_files_that_changed_are_refused_before_they_are_read(tmp_path: Path) -> None:
    config, text = tmp_path / "run.toml", tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "again and " * (n % 5 + 1)}) + "\n" for n in range(40)))
    (tmp_path / "profile.json").write_text(made_up_profile({"<1>": 64}).to_json())
    config.write_text(CONFIG.format(steps=2, folder=tmp_path))
    overrides = (
        f'data.sources=[{{files=["{text}"]}}]',
        f'data.index_directory="{tmp_path}/index"',
        "data.index_processes=1",
        'planner.strategies=["1x<1>"]',
    )
    ((begun,),) = run_ranks(1, run_commands, [command(config, *overrides)])
    assert begun.code == 0, begun.err
    (index,) = (tmp_path / "index").iterdir()
    before = text.stat().st_size
    with text.open("a") as file:
        file.write(json.dumps({"text": "more"}) + "\n")
    says = (
        f"was trained on other data: file '{text}' has {before + 17:,} bytes and had {before:,}; put the "
        "files back"
    )
    run = str(tmp_path / "run")
    ((refused,),) = run_ranks(1, run_commands, [command(config, *overrides, "train.steps=3", resume=run)])
    assert refused.code == 2
    assert refused.err.startswith("hydraulis.train: error [checkpoint_mismatch]: ")
    assert says in refused.err
    assert list((tmp_path / "index").iterdir()) == [index]
    # As the look at it says, which reads no more of it either.
    loaded = load(config, [*overrides, f'checkpoint.resume="{run}"'])
    (resume,) = (one for one in preflight(loaded, Cluster(1, 1)) if one.name == "resume")
    assert (resume.status, resume.code) == ("refused", "checkpoint_mismatch")
    assert says in resume.text
    # Settings that make other batches are known without the data too.
    loaded = load(config, [*overrides, "train.seed=9", f'checkpoint.resume="{run}"'])
    (resume,) = (one for one in preflight(loaded, Cluster(1, 1)) if one.name == "resume")
    assert (resume.status, resume.code) == ("refused", "checkpoint_mismatch")
    assert "train.seed = 0 and the run 9" in resume.text
    # Where the run does not say which they were, they are compared once they are read.
    (tmp_path / "run" / "corpus.json").write_text("{}")
    ((refused,),) = run_ranks(1, run_commands, [command(config, *overrides, "train.steps=3", resume=run)])
    assert "(of the section data nothing differs, so the files do)" in refused.err


def test_mapped_files_with_another_time_of_change_are_named_and_the_run_continues(tmp_path: Path) -> None:
    config, tokens = tmp_path / "run.toml", tmp_path / "tokens.npy"
    np.save(tokens, np.tile(np.arange(30, dtype=np.uint16), 40))
    (tmp_path / "profile.json").write_text(made_up_profile({"<1>": 64}).to_json())
    config.write_text(CONFIG.format(steps=2, folder=tmp_path))
    overrides = (
        f'data.sources=[{{files=["{tokens}"], format="tokens"}}]',
        'planner.strategies=["1x<1>"]',
    )
    ((begun,),) = run_ranks(1, run_commands, [command(config, *overrides)])
    assert begun.code == 0, begun.err
    longer = (*overrides, "train.steps=3", f'checkpoint.resume="{tmp_path}/run"')
    says = f"file '{tokens}': the time of change differs from the earlier steps'"

    def look() -> Finding:
        found = preflight(load(config, [*longer, 'output.directory="other"']), Cluster(1, 1))
        return next(one for one in found if one.name == "resume")

    assert (look().status, says in look().text) == ("ok", False)
    os.utime(tokens, ns=(2 * 10**18, 2 * 10**18))
    assert (look().status, says in look().text) == ("warning", True)
    ((resumed,),) = run_ranks(1, run_commands, [command(config, *longer)])
    assert resumed.code == 0, resumed.err
    assert says in resumed.out


def test_a_word_close_to_latest_suggests_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"; did you mean 'latest'\?$"):
        newest_of("latests", str(tmp_path))
