"""The collectives of a step, slow ranks, and checkpoints after a failure."""

import json
import socket
from pathlib import Path

import pytest

from hydraulis.config.run import load
from hydraulis.planner.model_shape import build_model_shape
from hydraulis.planner.profile_document import with_host_memory
from hydraulis.runtime.checkpoint.folder import CheckpointFolder
from profiles import made_up_profile
from ranks import run_ranks
from runtime.tiny import CAPS
from train.small_run import STEPS, read_lines, write_config
from train.train_workers import (
    Ended,
    collectives_of_steps,
    run_and_note_factors,
    run_commands,
    run_on_two_devices,
    run_where_a_step_is_not_finite,
    run_while_writing,
    run_with_slow_link,
    run_with_slow_rank,
)


def command_line(folder: Path, *more: str) -> list[str]:
    """Write the configuration and a profile, and give the arguments of a command that uses them."""
    (folder / "PROFILE").write_text(made_up_profile(CAPS).to_json())
    overrides = (
        f'planner.profile="{folder}/PROFILE"',
        "data.max_tokens=64",
        "data.tokens_per_batch=120",
        *more,
    )
    return [str(write_config(folder)), *(part for override in overrides for part in ("--set", override))]


def test_a_run_with_a_saved_profile_states_no_memory(tmp_path: Path) -> None:
    arguments = command_line(tmp_path, "train.steps=1")
    config = Path(arguments[0])
    config.write_text(config.read_text().replace("memory_mib = 6\n", ""))
    for (ended,) in run_ranks(2, run_commands, [arguments]):
        assert ended.code == 0, ended.err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["planner"]["memory_mib"] is None


def test_a_step_of_a_run_has_three_collectives_over_all_ranks(tmp_path: Path) -> None:
    # The plan, the step's sums, and the measurements: records and requests to stop need none of their own.
    expected = {"broadcast": 1, "all_reduce": 1, "gather": 1}
    for by_step in run_ranks(2, collectives_of_steps, command_line(tmp_path)):
        assert by_step == [expected] * (STEPS - 1)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Ended]]]:
    folder = tmp_path_factory.mktemp("failed")
    return folder, run_ranks(2, run_while_writing, command_line(folder, "checkpoint.every_steps=1"))


def test_a_failure_of_all_ranks_completes_the_checkpoint_in_progress(
    failed: tuple[Path, list[list[Ended]]],
) -> None:
    folder, ((first, _, _), (second, _, _)) = failed
    assert (first.code, second.code) == (2, 2)
    assert first.err.startswith("hydraulis.train: error [loss_not_finite]: ")
    checkpoint = folder / "run/checkpoints/step-00000001"
    assert CheckpointFolder.of_run(folder / "run").complete() == [checkpoint]
    said = f"failed after step 1 of {STEPS}; newest checkpoint: {checkpoint}; to resume: "
    assert first.out.splitlines()[-1].startswith(said)


def test_an_error_of_the_checkpoint_does_not_replace_the_first(
    failed: tuple[Path, list[list[Ended]]],
) -> None:
    folder, ((_, first, _), (_, second, _)) = failed
    assert (first.code, second.code) == (2, 2)
    assert first.err.startswith("hydraulis.train: error [loss_not_finite]: ")
    note, last = first.out.splitlines()[-2:]
    assert note.startswith(
        "the last checkpoint is not complete: the checkpoint cannot be written: no space left; "
    )
    assert last.startswith(f"failed after step 1 of {STEPS}; no checkpoint is complete: ")
    assert CheckpointFolder.of_run(folder / "run-2").complete() == []


def test_a_failure_of_one_rank_waits_for_no_other(failed: tuple[Path, list[list[Ended]]]) -> None:
    folder, ((_, _, first), (_, _, second)) = failed
    assert first.err == "ZeroDivisionError()"
    assert second.code == 2
    assert (folder / "run-3/checkpoints/step-00000001").is_dir()
    assert CheckpointFolder.of_run(folder / "run-3").complete() == []


def test_a_run_that_a_jump_stops_has_a_checkpoint_and_continues(tmp_path: Path) -> None:
    arguments = command_line(tmp_path, "train.steps=14", 'planner.strategies=["1x<tp2>"]')
    copies = tmp_path / "copies"
    copies.mkdir()
    copying = ["--set", f'checkpoint.memory_folder="{copies}"']
    stopping = [*arguments, *copying, "--set", "train.norm_jump=1", "--set", "train.on_jump=stop"]
    resumed = [*arguments, *copying, "--resume", str(tmp_path / "run")]
    whole = [*arguments, "--set", f'output.directory="{tmp_path}/whole"']
    (first,), _ = run_ranks(2, run_commands, [stopping])
    assert first.code == 2
    assert "[training_jumped]" in first.err
    assert "copying the state into" in first.out
    # Copies would be continued even from an earlier checkpoint.
    assert list(copies.iterdir()) == []
    (again, other), _ = run_ranks(2, run_commands, [resumed, whole])
    assert (again.code, other.code) == (0, 0), again.err + other.err
    before, written = (CheckpointFolder.of_run(tmp_path / name).complete() for name in ("run", "whole"))
    assert [path.name for path in written] == ["step-00000014"]
    assert len(before) == 2
    assert f"newest checkpoint: {before[0]}; to resume: " in first.out.splitlines()[-1]
    losses = [
        [line["loss"] for line in read_lines(tmp_path / run / "metrics.jsonl")] for run in ("run", "whole")
    ]
    assert losses[0] == losses[1]


def test_a_first_step_that_is_not_finite_names_an_earlier_checkpoint(tmp_path: Path) -> None:
    arguments = command_line(tmp_path, 'planner.strategies=["1x<tp2>"]', "checkpoint.every_steps=1")
    begun, resumed = [*arguments, "--set", "train.steps=2"], [*arguments, "--resume", str(tmp_path / "run")]
    (first, again), _ = run_ranks(2, run_where_a_step_is_not_finite, [begun, resumed], 3)
    assert (first.code, again.code) == (0, 2), first.err
    checkpoints = tmp_path / "run" / "checkpoints"
    assert "error [gradient_not_finite]: " in again.err
    said = f"after {checkpoints}/step-00000002, whose parameters may be the cause: to continue from "
    assert f"{said}{checkpoints}/step-00000001, " in again.err


def test_a_slow_stage_gets_fewer_layers_from_the_plans_that_know_its_rank(tmp_path: Path) -> None:
    arguments = command_line(
        tmp_path, 'planner.strategies=["1x<pp2>"]', "planner.layer_splits=2", "model.num_hidden_layers=8"
    )
    config = load(Path(arguments[0]), ["model.num_hidden_layers=8"])
    document = json.loads((tmp_path / "PROFILE").read_text())
    document["model"] = json.loads(build_model_shape(config.model).to_json())
    # Twice the memory, so that stages of two layers more fit.
    document["hardware"]["memory_bytes"] *= 2
    (tmp_path / "PROFILE").write_text(json.dumps(document))
    off = [word.replace("layer_splits=2", "layer_splits=0") for word in arguments]
    off += ["--set", f'output.directory="{tmp_path}/off"']
    (ended, without), _ = run_ranks(2, run_with_slow_rank, [[*arguments, "--set", "train.steps=6"], off])
    assert (ended.code, without.code) == (0, 0), ended.err + without.err
    plans = read_lines(tmp_path / "run" / "plans.jsonl")
    assert [plan["strategy"] for plan in plans] == ["1x<pp2>"] * 3 + ["1x<pp2,split:7-1>"] * 3
    # Stages of other lengths compute the same losses.
    losses = [
        [line["loss"] for line in read_lines(tmp_path / run / "metrics.jsonl")] for run in ("run", "off")
    ]
    assert losses[0][:4] == pytest.approx(losses[1], rel=1e-5)


def test_a_slow_rank_is_named_once_and_planned_for_also_by_a_resumed_run(tmp_path: Path) -> None:
    arguments = command_line(tmp_path, 'planner.strategies=["2x<1>"]', "data.max_tokens=32")
    resumed = [*arguments, "--set", "train.steps=6", "--resume", str(tmp_path / "run")]
    off = [*arguments, "--set", "planner.slow_rank=0"]
    (first, again, without), _ = run_ranks(2, run_with_slow_rank, [arguments, resumed, off])
    assert [one.code for one in (first, again, without)] == [0, 0, 0], first.err + again.err + without.err
    said = [line for line in first.out.splitlines() if "times as long as the other ranks" in line]
    assert len(said) == 1
    assert said[0].startswith(f"step 2: rank 1 on {socket.gethostname()} computes ")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [bool(line["rank_rates"]) for line in lines] == [False] * 3 + [True] * 3
    assert all(line["rank_rates"][0] == 1 > line["rank_rates"][1] for line in lines[3:])
    plans = read_lines(tmp_path / "run" / "plans.jsonl")
    assert [plan["cluster"].get("rates", []) for plan in plans] == [line["rank_rates"] for line in lines]
    # It was named before the run was resumed.
    assert "other ranks" not in again.out
    assert "other ranks" not in without.out
    unaware = read_lines(tmp_path / "run-2" / "metrics.jsonl")
    assert [line["rank_rates"] for line in unaware] == [[]] * STEPS
    assert [line["strategy"] for line in unaware[:3]] == [line["strategy"] for line in lines[:3]]


def test_factors_of_the_times_go_with_the_profile_that_they_correct(tmp_path: Path) -> None:
    arguments = command_line(tmp_path, 'planner.strategies=["2x<1>"]', "data.max_tokens=32")
    other = tmp_path / "OTHER"
    other.write_text(made_up_profile(CAPS, slowdown=3.0).to_json())
    corrected = [*arguments, "--set", "planner.recalibrate=0.5"]
    longer = [
        [*corrected, *more, "--set", f"train.steps={STEPS + number}", "--resume", str(tmp_path / "run")]
        for number, more in enumerate(([], ["--set", f'planner.profile="{other}"'], []), start=1)
    ]
    (ended, noted), _ = run_ranks(2, run_and_note_factors, [corrected, *longer])
    assert [one.code for one in ended] == [0] * 4, [one.err for one in ended]
    # The last run returns to the first profile, which the second one replaced.
    assert noted == [["<1>"], [], []]


def test_evaluations_on_other_data_are_noted_once_and_do_not_compare(tmp_path: Path) -> None:
    sets = []
    for name in ("a", "bc"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": f"{name} " * number}) + "\n" for number in range(2, 6)))
        sets.append(["--set", f"data.validation=[{{files=['{path}']}}]"])
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": "text " * (1 + n % 9)}) + "\n" for n in range(99)))
    own = [f'data.sources=[{{files=["{texts}"]}}]', f'data.index_directory="{tmp_path}/index"']
    own += ["data.index_processes=1", "data.max_tokens=32"]
    arguments = command_line(tmp_path, *own, "train.evaluate_every=1", 'planner.strategies=["2x<1>"]')
    longer = [
        [*arguments, *sets[one], "--set", f"train.steps={steps}", "--resume", str(tmp_path / "run")]
        for one, steps in ((0, 5), (1, 6), (1, 7))
    ]
    ended, _ = run_ranks(2, run_commands, [[*arguments, *sets[0]], *longer])
    assert [one.code for one in ended] == [0] * 4, [one.err for one in ended]
    said = "held-out data differ from those of the evaluations up to step 5 "
    assert [said in one.out for one in ended] == [False, False, True, False]
    data = [line["data"] for line in read_lines(tmp_path / "run" / "evaluations.jsonl")]
    assert data == [data[0]] * 5 + [data[-1]] * 2
    assert data[0] != data[-1]


def test_ranks_of_two_devices_are_planned_by_the_profile_of_each(tmp_path: Path) -> None:
    slow = tmp_path / "SLOW"
    slow.write_text(made_up_profile(CAPS, device="slow CPU", slowdown=3.0).to_json())
    alone = command_line(tmp_path, 'planner.strategies=["2x<1>"]', "data.max_tokens=32")
    (tmp_path / "PROFILE").write_text(made_up_profile(CAPS, device="fast CPU").to_json())
    both = [*alone, "--set", f"planner.device_profiles=['{slow}']"]
    resumed = [*both, "--set", "train.steps=6", "--resume", str(tmp_path / "run")]
    (tmp_path / "OTHER").write_text(made_up_profile(CAPS, device="other CPU").to_json())
    unknown = [*alone, "--set", f"planner.device_profiles=['{tmp_path}/OTHER']"]
    (first, again, of_one, refused), _ = run_ranks(2, run_on_two_devices, [both, resumed, alone, unknown])
    assert [one.code for one in (first, again, of_one)] == [0, 0, 0], first.err + again.err + of_one.err
    assert "several devices" not in first.out
    assert "1 of fast CPU, 1 of slow CPU" in of_one.out
    plans = read_lines(tmp_path / "run" / "plans.jsonl")
    assert len(plans) == 6
    for plan in plans:
        assert (plan["cluster"]["devices"], plan["cluster"]["rates"]) == ([0, 1], [1, pytest.approx(1 / 3)])
        tokens = {
            replica["ranks"][0]: sum(
                plan["batch"]["tokens"][sequence] for one in replica["micro_batches"] for sequence in one
            )
            for replica in plan["replicas"]
        }
        assert tokens[0] > tokens[1]
    # No rank is slow for its device.
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["rank_rates"] for line in lines] == [[]] * 6
    # Sequences on other ranks give the same losses.
    losses = [line["loss"] for line in read_lines(tmp_path / "run-2" / "metrics.jsonl")]
    assert [line["loss"] for line in lines[:STEPS]] == pytest.approx(losses, rel=1e-5)
    assert refused.code == 2
    assert "error [profile_mismatch]: rank 1 on " in refused.err


def test_a_slow_link_is_named_once_and_planned_for_until_a_resume(tmp_path: Path) -> None:
    arguments = command_line(
        tmp_path, 'planner.strategies=["3x<1>"]', 'planner.link="0.01"', "data.max_tokens=32"
    )
    first = [*arguments, "--set", "train.steps=14"]
    resumed = [*arguments, "--set", "train.steps=17", "--resume", str(tmp_path / "run")]
    off = [*arguments, "--set", "planner.slow_link=0"]
    (ended, again, without), *_ = run_ranks(3, run_with_slow_link, [first, resumed, off], range(10, 1_000))
    assert [one.code for one in (ended, again, without)] == [0, 0, 0], ended.err + again.err + without.err
    said = [line for line in ended.out.splitlines() if "transfers" in line and "step " in line]
    assert said == [
        "step 12: transfers to and from node-1 take 3 times as long as usual; plans count with it from now on"
    ]
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    # Slow from step 10 on. Step 13 was planned before the nodes exchanged in pairs.
    assert [line["link_slowdowns"] for line in lines] == [[]] * 12 + [[3, 3, 3], [1, 3, 1]] + [[]] * 3
    plans = read_lines(tmp_path / "run" / "plans.jsonl")
    times = [plan["transfers"]["alone_ms"] for plan in plans]
    assert times[12] == pytest.approx(3 * times[0], rel=0.02)
    # All nodes have as much to send.
    assert times[13] == pytest.approx(times[12], rel=0.02)
    # A resumed run may be on other nodes, and judges links from its own first steps.
    assert times[14:] == pytest.approx([times[0]] * 3, rel=0.02)
    assert "transfers to and from" not in again.out
    assert "transfers to and from" not in without.out
    unaware = read_lines(tmp_path / "run-2" / "metrics.jsonl")
    assert [line["link_slowdowns"] for line in unaware] == [[]] * STEPS


def test_links_that_are_as_usual_again_are_named_and_no_longer_counted(tmp_path: Path) -> None:
    arguments = command_line(
        tmp_path,
        'planner.strategies=["3x<1>"]',
        'planner.link="0.01"',
        "data.max_tokens=32",
        "train.steps=18",
    )
    (ended,), *_ = run_ranks(3, run_with_slow_link, [arguments], range(10, 15))
    assert ended.code == 0, ended.err
    said = [line for line in ended.out.splitlines() if "transfers" in line and "step " in line]
    assert said[1:] == ["step 16: transfers to and from node-1 take their usual time again"]
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    # Step 17 was planned while step 16 ran.
    assert [line["link_slowdowns"] for line in lines[13:]] == [[1, 3, 1]] * 4 + [[]]


def test_layers_that_offload_share_the_host_memory_with_copies_of_the_state(tmp_path: Path) -> None:
    arguments = command_line(tmp_path, 'planner.strategies=["2x<1,offload>"]', "train.steps=1")
    profile = made_up_profile({"<1,offload>": 64})
    # More than any machine has.
    (tmp_path / "PROFILE").write_text(with_host_memory(profile, 1 << 60).to_json())
    (tmp_path / "memory").mkdir()
    copies = [*arguments, "--set", f"checkpoint.memory_folder={tmp_path}/memory"]
    (without, next_to_copies), _ = run_ranks(2, run_commands, [arguments, copies])
    assert (without.code, next_to_copies.code) == (0, 0), without.err + next_to_copies.err
    said = [
        [line for line in one.out.splitlines() if "layers that offload" in line]
        for one in (without, next_to_copies)
    ]
    assert [len(lines) for lines in said] == [0, 1]
    assert "the copies in checkpoint.memory_folder take the rest" in said[1][0]
