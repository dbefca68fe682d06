import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cli.invocation import assert_refused, options_of
from hydraulis import Cluster, Plan, Planner, Scheme, Strategy
from hydraulis.cli.commands import plan as cli_plan
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_PIPE_CLOSED, EXIT_REFUSED
from hydraulis.cli.main import main
from hydraulis.planner import load_profile, read_lengths

# The installed command itself, not a module run by path.
COMMAND = str(Path(sysconfig.get_path("scripts"), "hydraulis"))


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.txt"
    path.write_text("31000\n12000\n900\n900\n450\n80\n", encoding="utf-8")
    return path


def options(lengths: Path, *more: str, gpus: int = 64) -> list[str]:
    given = {"--profile": "llama-32b-a800", "--gpus": str(gpus), "--lengths": str(lengths)}
    return options_of("plan", given, *more)


def test_prints_the_explanation(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(lengths)) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "6 sequences, 45,330 tokens, the longest 31,000" in output.out
    assert "64 GPUs in nodes of 8" in output.out


def test_prints_the_plan_as_json(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(lengths, "--json")) == 0
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert json.loads(text)["profile"] == "llama-32b-a800"
    assert Plan.from_json(text).lengths.tolist() == [31000, 12000, 900, 900, 450, 80]


@pytest.mark.parametrize(
    ("suffix", "title", "is_saving"),
    [
        ("none,full", "in GiB", True),
        ("none,full,sharded-parameters", "in GiB, with sharded parameters", True),
        ("none", "in GiB", False),
    ],
)
def test_the_memory_of_the_fullest_ranks_is_shown(
    lengths: Path, capsys: pytest.CaptureFixture[str], suffix: str, title: str, *, is_saving: bool
) -> None:
    lengths.write_text("15000\n" * 4 + "4000\n" * 20, encoding="utf-8")
    name = f"analytic:llama-7b-a800:A100-40GB,{suffix}"
    more = ("--profile", name, "--strategies", "search")
    assert main(options(lengths, *more, gpus=8)) == 0
    text = capsys.readouterr().out
    _, _, table = text.partition(f"Memory of the fullest rank of each scheme {title}:\n")
    header, *rows = table.partition("\n\n")[0].splitlines()
    assert ("otherwise" in header) == is_saving
    cluster = Cluster(gpus=8, gpus_per_node=8)
    planner = Planner(load_profile(name), cluster, strategies="search")
    plan = planner.plan(read_lengths(lengths))
    held = [memory.total_bytes for memory in planner.rank_memory(plan) if memory is not None]
    figures = [[float(cell) for cell in row.split()[1:]] for row in rows if "<" in row]
    assert len(figures) == len(set(Strategy(plan.strategy).schemes))
    assert max(row[4] for row in figures) == pytest.approx(max(held) / 2**30, abs=0.05)
    for *parts, total, limit in (row[:6] for row in figures):
        assert sum(parts) == pytest.approx(total, abs=0.3)
        assert total <= limit == 40.0
    assert {len(row) for row in figures} == {7 if is_saving else 6}
    if is_saving:
        # Some rank has no memory for the same micro-batches otherwise.
        assert max(row[-1] for row in figures) > 40.0
        names = [row.split()[0] for row in rows if "<" in row]
        shown = {name: row[-1] for name, row in zip(names, figures, strict=True) if Scheme(name).pp == 1}
        assert shown
        assert shown == pytest.approx({name: otherwise(plan, name) for name in shown}, abs=0.1)


def otherwise(plan: Plan, name: str) -> float:
    """Return the GiB of the fullest rank of a scheme without stages, without checkpointing and sharding."""
    document = json.loads(load_profile("analytic:llama-7b-a800:A100-40GB").to_json())
    scheme = str(Scheme(name).with_checkpointing("none"))
    entry = next(entry for entry in document["schemes"] if entry["scheme"] == scheme)
    tokens = max(
        int(plan.lengths[ids].sum())
        for replica in plan.replicas
        for ids in replica.micro_batches
        if str(replica.scheme) == name
    )
    memory = document["memory"]
    empty = memory["reserved_bytes"] + memory["optimizer_bytes"] / plan.cluster.gpus + entry["resident_bytes"]
    return float(empty + tokens * entry["activation_bytes_per_token"]) / 2**30


def test_memory_otherwise_is_left_out_where_the_profile_does_not_tell(
    lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--profile", "analytic:llama-7b-a800:A100-40GB,full", "--strategies", "search")
    assert main(options(lengths, *more, gpus=8)) == 0
    text = capsys.readouterr().out
    assert "Memory of the fullest rank of each scheme" in text
    assert "otherwise" not in text


def test_layer_plans_are_planned_and_explained(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths.write_text("20000\n" * 4 + "4000\n" * 20, encoding="utf-8")
    profile = "analytic:llama-7b-a800:A100-40GB,none,full"
    more = ("--profile", profile, "--layer-plans", "2", "--strategies", "search")
    assert main(options(lengths, *more, gpus=8)) == 0
    text = capsys.readouterr().out
    found = re.search(r"<([^>]*)full:([0-9]+)/32>: everything in ([0-9]+) of 32 layers", text)
    assert found is not None, text
    assert found[2] == found[3]
    assert "its fullest micro-batch has" in text


def test_strategies_are_separated_by_semicolons(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(lengths, "--json", "--strategies", "1x<tp16>+12x<tp4>; 8x<tp4,pp2>;")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["strategy"] == "1x<tp16>+12x<tp4>"
    assert [entry["strategy"] for entry in document["candidates"]] == ["1x<tp16>+12x<tp4>", "8x<tp4,pp2>"]


def test_strategies_are_not_separated_by_commas(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(lengths, "--strategies", "1x<tp16>+12x<tp4>,8x<tp4,pp2>")) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert said.startswith("hydraulis: error [strategy_invalid]: '1x<tp16>+12x<tp4>,8x<tp4,pp2>' ")
    assert "';'" in said


def test_the_in_flight_limit_admits_longer_sequences(
    lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths.write_text("60000\n900\n", encoding="utf-8")
    search = options(lengths, "--strategies", "search", "--json")
    assert main(search) == 2
    assert "[sequence_too_long]" in capsys.readouterr().err
    assert main([*search, "--memory", "in_flight"]) == 0
    assert Plan.from_json(capsys.readouterr().out).memory == "in_flight"


def test_a_proof_tightens_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uneven = tmp_path / "uneven.txt"
    numbers = np.random.default_rng(6).lognormal(6.2, 1.2, 300).astype(int).clip(1, 32_768)
    uneven.write_text("\n".join(map(str, numbers)))
    gaps = []
    for more in ([], ["--prove"]):
        assert main(options(uneven, "--strategies", "search", "--json", *more)) == 0
        gaps.append(Plan.from_json(capsys.readouterr().out).gap)
    assert gaps[1] < gaps[0]


def test_nodes_have_the_profiles_size_without_an_option(
    lengths: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(lengths, "--gpus-per-node", "16")) == 0
    assert "64 GPUs in nodes of 16" in capsys.readouterr().out


def test_reads_arrays_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array, records = tmp_path / "lengths.npy", tmp_path / "records.jsonl"
    np.save(array, np.array([300, 20]))
    records.write_text('{"n": 300}\n{"n": 20}\n', encoding="utf-8")
    assert main(options(array, "--json")) == 0
    assert main(options(records, "--json", "--field", "n")) == 0
    one, other = capsys.readouterr().out.splitlines()
    assert one == other


def test_the_timeline_is_written_as_a_trace_and_drawn(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, figure = tmp_path / "plan.json", tmp_path / "plan.svg"
    assert main(options(lengths, "--json", "--trace", str(trace), "--figure", str(figure))) == 0
    plan = Plan.from_json(capsys.readouterr().out)
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(1e3 * plan.iteration_ms)
    assert "<title>backward of micro-batch 0: " in figure.read_text(encoding="utf-8")
    assert main(options(lengths, "--trace", str(trace))) == 0
    assert capsys.readouterr().out.endswith(f"written to {trace}\n")


@pytest.mark.parametrize(("option", "name"), [("--trace", "plan.json"), ("--figure", "plan.svg")])
def test_an_unwritable_file_is_refused_before_the_work(
    lengths: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    name: str,
) -> None:
    monkeypatch.delattr("hydraulis.cli.options.load_profile")
    assert main(options(lengths, option, str(tmp_path / "missing" / name))) == 2
    assert "[file_unwritable]" in capsys.readouterr().err


def test_transfers_by_links_are_planned_traced_and_drawn(
    lengths: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, figure = tmp_path / "plan.json", tmp_path / "plan.svg"
    more = ["--link", "200", "--json", "--trace", str(trace), "--figure", str(figure)]
    assert main(options(lengths, *more)) == 0
    plan = Plan.from_json(capsys.readouterr().out)
    assert plan.transfer_ms is not None
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    last = 0.0
    for what in ("parameters", "gradients"):
        transfer_spans = [
            event for event in events if event["tid"] == names[f"transfer of {what}"] and event["ph"] == "X"
        ]
        # 60 layers, and the embedding and the head.
        assert [event["args"]["layer_group"] for event in transfer_spans] == list(range(62))
        last = max(event["ts"] + event["dur"] for event in transfer_spans)
    assert last == pytest.approx(1e3 * plan.step_ms)
    drawn = figure.read_text(encoding="utf-8")
    assert "<title>parameters of layer group 1: " in drawn
    assert "<title>gradients of layer group 61: " in drawn


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--link", "0"], "config_value"),
        (["--lengths", "missing.txt"], "file_unreadable"),
        (["--field", "n"], "data_file_invalid"),
        (["--profile", "llama-1t"], "profile_unknown"),
        (["--profile", "missing.json"], "file_unreadable"),
        (["--gpus", "12"], "argument_invalid"),
        (["--strategies", ";"], "no_strategies"),
        (["--strategies", "12x"], "strategy_invalid"),
        (["--strategies", "1x<tp2>"], "scheme_unknown"),
        (["--strategies", "8x<tp16>"], "strategy_unplaceable"),
        (["--gpus", "2"], "strategy_unplaceable"),
        (["--strategies", "1x<cp2>"], "scheme_unknown"),
        (["--strategies", "8x<tp4,pp2>"], "sequence_too_long"),
    ],
)
def test_a_refusal_is_one_line_with_exit_code_2(
    lengths: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: str
) -> None:
    assert_refused(capsys, options(lengths, *more), code)


@pytest.mark.parametrize("text", ["", "0\n", "-3\n", "1.5\n", "nan\n"])
def test_wrong_lengths_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    path = tmp_path / "two\nlines.txt"
    path.write_text(text, encoding="utf-8")
    assert main(options(path)) == 2
    error = capsys.readouterr().err
    assert error.startswith("hydraulis: error [data_file_invalid]: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["plam"],
        ["plan"],
        ["plan", "--profile", "llama-32b-a800", "--lengths", "x", "--gpus", "many"],
        ["plan", "--profile", "llama-32b-a800", "--lengths", "x", "--gpus", "-8"],
        ["plan", "--profile", "llama-32b-a800", "--lengths", "x", "--gpus", "0"],
        ["plan", "--profile", "llama-32b-a800", "--lengths", "x", "--gpus", "99999999999"],
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "error [option_invalid]: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "part"), [("--help", "130  interrupted"), ("--version", "hydraulis 0.")]
)
def test_help_and_version_are_printed(argument: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([argument])
    assert end.value.code == 0
    assert part in capsys.readouterr().out


def test_a_failed_check_is_an_internal_error(
    lengths: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class CarelessPlanner:
        def __init__(self, *arguments: object, **options: object) -> None:
            self.planner = Planner(*arguments, **options)  # type: ignore[arg-type]

        def plan(self, lengths: Sequence[int]) -> Plan:
            document = json.loads(self.planner.plan(lengths).to_json())
            document["replicas"][0]["micro_batches"][0].pop()
            return Plan.from_json(json.dumps(document))

        def check(self, plan: Plan, lengths: Sequence[int]) -> list[str]:
            return self.planner.check(plan, lengths)

    monkeypatch.setattr(cli_plan, "Planner", CarelessPlanner)
    assert main(options(lengths)) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "internal error" in output.err
    assert "\n  sequence_missing: sequence " in output.err


def test_an_interrupt_has_its_own_exit_code(
    lengths: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hydraulis.cli.options.load_profile", interrupted)
    assert main(options(lengths)) == EXIT_INTERRUPTED == 130
    assert capsys.readouterr() == ("", "hydraulis: interrupted\n")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_installed_command_prints_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    lengths = np.random.default_rng(0).lognormal(6.0, 1.3, 1_000).astype(int).clip(1, 32_000)
    np.savetxt(path, lengths, fmt="%d")
    done = run(*options(path, "--json"))
    assert (done.returncode, done.stderr) == (0, "")
    plan = Plan.from_json(done.stdout)
    assert plan.lengths.tolist() == lengths.tolist()


def test_the_installed_command_refuses_with_its_exit_code(tmp_path: Path) -> None:
    done = run(*options(tmp_path / "missing.txt"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hydraulis: error [file_unreadable]: ")
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_quiet(lengths: Path) -> None:
    command = [COMMAND, *options(lengths)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    # Closed before the command has even started: its first write finds no reader.
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=120), errors) == (EXIT_PIPE_CLOSED, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_output_without_room_is_refused_in_one_line(lengths: Path, more: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [COMMAND, *options(lengths, *more)],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == EXIT_REFUSED
    assert done.stderr.startswith("hydraulis: error [file_unwritable]: ")
    assert done.stderr.count("\n") == 1


def test_counts_are_written_as_in_a_configuration(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", "--lengths", str(lengths), "--json", "--count", "2", "--tokens-per-batch"]
    for text in ("60000", "60_000"):
        assert main([*words, text]) == 0
    one, two = capsys.readouterr().out.splitlines()
    assert one == two
    for text in ("_6", "6_", "6__0", "6,000"):
        assert main([*words, text]) == EXIT_REFUSED


def test_nodes_of_several_kinds_state_the_cluster(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, nodes = "analytic:llama-7b-a800:A100-80GB", "1xA100-80GB;1xH100"
    given = ["plan", "--profile", profile, "--lengths", str(lengths), "--strategies", "1x<tp8>"]
    assert main([*given, "--nodes", nodes]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "1 x 8 A100-80GB, ranks 0-7: rate 1.00, 86 GB\n1 x 8 H100-80GB, ranks 8-15: rate 2."
    )
    assert "16 GPUs in nodes of 8 and of rates 1.00 to 2." in text
    assert main([*given, "--nodes", nodes, "--gpus-per-node", "4", "--json"]) == 0
    cluster = json.loads(capsys.readouterr().out)["cluster"]
    assert (cluster["gpus"], cluster["rates"][:4]) == (8, [1.0] * 4)
    assert min(cluster["rates"][4:]) > 2
    for refused in (["--nodes", nodes, "--gpus", "16"],):
        assert main([*given, *refused]) == EXIT_REFUSED
        assert "[option_invalid]: --gpus and --nodes" in capsys.readouterr().err


def test_a_missing_cluster_is_refused_by_name(lengths: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["plan"], ["simulate", "--tokens-per-batch", "9"]):
        assert main([*command, "--profile", "llama-32b-a800", "--lengths", str(lengths)]) == EXIT_REFUSED
        said = "[option_invalid]: the cluster is missing: give --gpus N, or --nodes LIST\n"
        assert capsys.readouterr().err.endswith(said)


def test_a_sequence_that_is_too_long_is_named_with_its_place_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("9\n900000\n")
    assert main(options(path)) == EXIT_REFUSED
    error = capsys.readouterr().err
    assert "sequence 1 has 900,000 tokens" in error
    assert error.endswith(f", or raise --gpus (sequences are counted from 0, in the order of {path})\n")
