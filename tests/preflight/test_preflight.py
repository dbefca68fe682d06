"""Everything that can be known before a rank starts, and every way in which a run is refused then."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cli.told import listen
from helpers import at_least
from hydraulis import Cluster, Scheme
from hydraulis.cli.main import main
from hydraulis.config.run import RunConfig, load
from hydraulis.data.open import open_sources
from hydraulis.data.sources.prepare import prepare_sources
from hydraulis.errors import InvalidInputError
from hydraulis.preflight.finding import Finding
from hydraulis.preflight.folders import FolderLook
from hydraulis.preflight.run import preflight
from hydraulis.runtime.memory.resident import held_memory
from hydraulis.runtime.records.output_folder import look_at_output
from preflight.preflight_workers import count_bytes
from profiles import made_up_profile
from ranks import run_ranks
from test_end_to_end import make_model, write_documents

CONFIG = """
[model]
path = "{folder}/base"
[data]
sources = [{{files = ["{folder}/documents.jsonl"]}}]
max_tokens = 64
tokens_per_batch = 160
index_directory = "{folder}/index"
index_processes = 1
[train]
epochs = 2
[planner]
strategies = ["2x<tp2>", "1x<tp2>+2x<1>", "2x<pp2>"]
memory_mib = 6
profile = "{folder}/profile.json"
[output]
directory = "{folder}/runs/one"
"""
NAMES = [
    *("configuration", "model", "tokenizer", "data", "length", "resume", "device", "profile", "strategies"),
    *("memory", "longest", "output", "services"),
]
CAPS = {"<1>": 64, "<tp2>": 96, "<pp2>": 64, "<cp4>": 64}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("preflight")
    make_model(path / "base")
    write_documents(path / "documents.jsonl")
    (path / "profile.json").write_text(made_up_profile(CAPS).to_json())
    (path / "run.toml").write_text(CONFIG.format(folder=path))
    return path


def read(folder: Path, *overrides: str) -> RunConfig:
    return load(folder / "run.toml", overrides)


def looks(config: RunConfig, gpus: int = 4) -> dict[str, Finding]:
    found = list(preflight(config, Cluster(gpus, gpus)))
    at_least(10, found)
    return {one.name: one for one in found}


def test_what_is_not_indexed_yet_is_tried(made: Path) -> None:
    found = looks(read(made))
    assert {name for name, one in found.items() if one.status == "later"} == {"data", "length"}
    assert {one.status for one in found.values()} == {"ok", "later"}
    tried = "its first records can be read (hydraulis analyze and training read them all)"
    assert found["data"].text == f"source 0, 1 file: no index yet; {tried}"
    assert "the files of" in found["model"].text
    assert "up to 64 tokens may come, 96 are admitted" in found["longest"].text
    assert "9,536.743164 MiB of the profile" in found["memory"].text
    assert "planner.memory_mib = 6 " in found["memory"].text
    small = looks(read(made, "data.tokens_per_batch=63"))["longest"].text
    assert small.startswith(
        "up to 64 tokens may come (more than data.tokens_per_batch = 63, which its batch then"
    )
    # Nothing was made.
    assert not (made / "index").exists()
    assert not (made / "runs").exists()


def test_what_is_indexed_is_counted(made: Path, tmp_path: Path) -> None:
    config = read(made, f"data.index_directory={tmp_path}/index", "data.held_out=0.1")
    prepare_sources(config.data)
    found = looks(config)
    assert {one.status for one in found.values()} == {"ok"}
    assert found["data"].text.startswith("1 source: 54 sequences of ")
    assert found["data"].text.endswith("6 are held out")
    assert "2 epochs are " in found["length"].text
    once = read(made, f"data.index_directory={tmp_path}/index", "train.epochs=1", "data.held_out=0.1")
    assert "; 1 epoch is " in looks(once)["length"].text


def test_broken_records_are_left_out_and_counted_if_so_wanted(made: Path, tmp_path: Path) -> None:
    text = (made / "documents.jsonl").read_text()
    (tmp_path / "text.jsonl").write_text(f"no JSON\n{text}")
    sources = f'data.sources=[{{files=["{tmp_path}/text.jsonl"]}}]'
    config = read(made, f"data.index_directory={tmp_path}/index", sources)
    assert looks(config)["data"].code == "record_malformed"
    config = replace(config, data=replace(config.data, broken="skip"))
    assert looks(config)["data"].status == "later"
    prepare_sources(config.data)
    found = looks(config)["data"]
    assert (found.status, found.text.rpartition(", ")[2]) == ("ok", "1 broken record left out")
    config = replace(config, data=replace(config.data, broken="refuse"))
    assert looks(config)["data"].code == "record_malformed"


def test_batches_that_repeat_what_there_is_are_said(made: Path, tmp_path: Path) -> None:
    config = read(made, f"data.index_directory={tmp_path}/index", "data.tokens_per_batch=5_000_000")
    prepare_sources(config.data)
    for epochs, says in ((2, False), (1_000, True)):
        found = looks(replace(config, train=replace(config.train, epochs=epochs)))["data"]
        assert found.status == ("warning" if says else "ok")
        assert ("; data.tokens_per_batch = 5,000,000: the data, " in found.text) == says
        assert found.text.endswith("or add data") == says


@pytest.mark.parametrize(("steps", "epochs"), [(3, None), (3, 2), (None, 2)])
def test_what_so_few_steps_never_reach_is_named(
    made: Path, tmp_path: Path, steps: int | None, epochs: int | None
) -> None:
    def looked(warmup: int, traced: int, decay: int = 0) -> Finding:
        late = [f"optimizer.warmup_steps={warmup}", f"train.trace_step={traced}"]
        if decay:
            late += ["optimizer.schedule='wsd'", f"optimizer.decay_steps={decay}"]
        config = read(made, f"data.index_directory={tmp_path}/index", *late)
        prepare_sources(config.data)
        train = replace(config.train, steps=steps, epochs=epochs)
        return looks(replace(config, train=train))["length"]

    look = looked(1000, 1000)
    assert look.status == "warning"
    assert "; optimizer.warmup_steps = 1,000 ends after them: the full rate" in look.text
    assert look.text.endswith("; train.trace_step = 1,000 comes after them: the last one is traced")
    last = int(look.text.split()[0])
    assert "them" not in looked(last, last).text
    assert looked(last, last).status == "ok"
    assert f"; train.trace_step = {last + 1} comes after them" in looked(last, last + 1).text
    assert looked(1, last, decay=last - 1).text == looked(last, last).text
    assert looked(1, last, decay=last).text.endswith(
        f"; optimizer.decay_steps = {last} begin in the warm-up: fewer of them are left"
    )


@pytest.mark.parametrize("files", [1, 40])
def test_files_without_a_record_are_refused_as_the_run_refuses_them(
    made: Path, tmp_path: Path, files: int
) -> None:
    for number in range(files):
        (tmp_path / f"{number:02}.jsonl").write_text("\n" * number)
    names = f'data.sources=[{{files=["{tmp_path}/*.jsonl"]}}]'
    config = read(made, names, f"data.index_directory={tmp_path}/index")
    found = looks(config)["data"]
    assert (found.status, found.code) == ("refused", "corpus_empty")
    with pytest.raises(InvalidInputError) as refusal:
        open_sources(config.data, prepare_sources(config.data))
    assert (refusal.value.code, str(refusal.value)) == (found.code, found.text)
    # Not among those that are tried first.
    (tmp_path / f"{min(1, files - 1):02}.jsonl").write_text('{"text": "one"}\n')
    assert looks(config)["data"].status == "later"


def test_sequences_longer_than_the_model_was_made_for_are_said(made: Path) -> None:
    assert "max_position_embeddings" not in looks(read(made))["model"].text
    found = looks(read(made, "data.max_tokens=65", "planner.strategies=2x<tp2>"))["model"]
    assert found.status == "warning"
    assert f"; data.max_tokens = 65 is above max_position_embeddings = 64 of {made}/base/" in found.text


def test_patterns_without_a_parameter_to_keep_from_decay_are_said(made: Path) -> None:
    assert looks(read(made, "optimizer.no_decay=model.norm.weight"))["model"].status == "ok"
    found = looks(read(made, "optimizer.no_decay=norm.weight"))["model"]
    assert found.status == "warning"
    assert "; optimizer.no_decay: 'norm.weight' matches no parameter of the model" in found.text


def test_text_that_is_not_read_by_the_models_tokenizer_is_said(made: Path, tmp_path: Path) -> None:
    base = shutil.copytree(made / "base", tmp_path / "base")
    assert looks(read(made, f"model.path={base}"))["tokenizer"].text.startswith("bytes: 256 tokens, ")
    (base / "tokenizer.json").write_text("{}")
    found = looks(read(made, f"model.path={base}"))["tokenizer"]
    assert found.status == "warning"
    assert found.text.endswith(
        f"; {base} has a tokenizer, and data.tokenizer = 'bytes' gives other tokens "
        f"than the model knows: set data.tokenizer = '{base}'"
    )


def test_without_a_profile_the_run_measures_one(made: Path) -> None:
    found = looks(read(made, "planner.profile=", "train.steps=3", "train.frozen=model.embed_tokens.*"))
    assert found["profile"].status == found["longest"].status == "later"
    assert "8,192 of them frozen;" in found["model"].text
    tied = looks(
        read(
            made, "train.frozen=model.embed_tokens.*", "model.tie_word_embeddings=true", "checkpoint.weights="
        )
    )
    assert "8,192 of them frozen (the embedding is also the head" in tied["model"].text


TWO_HEADS = ("model.num_attention_heads=2", "model.num_key_value_heads=2")
# Terabytes, tens of them, whose parameters are counted and not made.
HUGE = ("model.hidden_size=524288", "model.intermediate_size=1048576")
NO_ROOM = ("planner.memory_mib=1", "model.hidden_size=256")
REFUSALS = (
    (["train.frozen=*.absent"], "model", "config_value"),
    (["data.tokenizer=FOLDER/nowhere"], "tokenizer", "tokenizer_invalid"),
    (["model.vocab_size=255"], "tokenizer", "token_out_of_range"),
    (["model.vocab_size=255"], "model", "weights_invalid"),
    (['data.sources=[{files=["FOLDER/*.parquet"]}]'], "data", "file_unreadable"),
    (['data.sources=[{files=["FOLDER/documents.jsonl"], fields=["body"]}]'], "data", "record_malformed"),
    (["planner.strategies=1x<tp8>"], "strategies", "strategy_unplaceable"),
    (["planner.strategies=1x<tp3>"], "strategies", "scheme_model_mismatch"),
    (["planner.strategies=1x<pp4>", "planner.profile="], "strategies", "scheme_model_mismatch"),
    (["planner.strategies=1x<cp4>", "planner.profile=", *TWO_HEADS], "strategies", "scheme_model_mismatch"),
    (["planner.strategies=1x<tp2,pp2>"], "strategies", "scheme_unknown"),
    (["planner.strategies=search", "planner.profile=", *NO_ROOM], "strategies", "no_strategies"),
    (["planner.profile=FOLDER/absent.json"], "profile", "file_unreadable"),
    (["planner.strategies=1x<1,full>"], "strategies", "scheme_unknown"),
    (["planner.profile=", *NO_ROOM], "memory", "scheme_too_large"),
    (["checkpoint.resume=FOLDER/base"], "resume", "checkpoint_missing"),
    (["output.directory=FOLDER/documents.jsonl/run"], "output", "file_unwritable"),
    (["output.directory=.."], "output", "file_unwritable"),
    # Root may write anywhere, as permissions have it; this file system takes nothing all the same.
    (["output.directory=/proc/run"], "output", "file_unwritable"),
    ([*HUGE], "output", "file_unwritable"),
    ([f"output.directory=FOLDER/{'long' * 99}/run"], "output", "file_unwritable"),
)


@pytest.mark.parametrize(
    ("overrides", "name", "code"), REFUSALS, ids=[f"{one[1]}-{one[2]}" for one in REFUSALS]
)
def test_a_refusal_is_a_line_and_the_rest_is_looked_at(
    made: Path, overrides: list[str], name: str, code: str
) -> None:
    found = looks(read(made, *(one.replace("FOLDER", str(made)) for one in overrides)))
    assert (found[name].status, found[name].code) == ("refused", code), found[name].text


@pytest.mark.parametrize(
    ("override", "first", "others"),
    [
        ("train.frozen=*.absent", "model", ["strategies", "output"]),
        ("data.tokenizer=FOLDER/nowhere", "tokenizer", ["data"]),
    ],
)
def test_one_refusal_is_said_once(made: Path, override: str, first: str, others: list[str]) -> None:
    found = looks(read(made, override.replace("FOLDER", str(made))))
    assert [name for name, one in found.items() if one.status == "refused"] == [first]
    for name in others:
        assert (found[name].status, found[name].code) == ("later", None)
        assert found[name].text == f"follows from {first}, which is refused"


def test_a_sequence_that_no_strategy_admits_is_refused_once_it_is_known(made: Path, tmp_path: Path) -> None:
    (tmp_path / "narrow.json").write_text(made_up_profile({"<1>": 20}).to_json())
    overrides = (f"data.index_directory={tmp_path}/index", f"planner.profile={tmp_path}/narrow.json")
    config = read(made, *overrides, "planner.strategies=4x<1>")
    assert looks(config)["longest"].status == "later"
    prepare_sources(config.data)
    assert looks(config)["longest"].code == "sequence_too_long"


def test_a_parent_that_cannot_be_looked_into_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may look everywhere.
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    config = read(made)
    monkeypatch.setattr(Path, "lstat", refuse)
    monkeypatch.setattr(Path, "exists", refuse)
    found = FolderLook(config)
    with pytest.raises(InvalidInputError, match=r"runs/one' cannot be made: \[Errno 13\]") as refusal:
        found.output(None)
    assert refusal.value.code == "file_unwritable"


def test_room_for_all_checkpoints_is_counted_once_the_data_are_indexed(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps_all = ("checkpoint.keep=0", "checkpoint.every_steps=1")
    config = read(made, f"data.index_directory={tmp_path}/index", *keeps_all)
    found = looks(config)["output"]
    assert found.status == "later"
    assert found.text.endswith(
        "checkpoint.keep = 0 keeps all, and how many is known once the data are indexed"
    )
    prepare_sources(config.data)
    assert looks(config)["output"].status == "ok"
    ended = replace(config, checkpoint=replace(config.checkpoint, every_steps=None))
    needed = look_at_output(ended, None).needed
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * needed))
    found = looks(config)["output"]
    assert (found.status, found.code) == ("refused", "file_unwritable")
    steps = int(looks(config)["length"].text.split()[0])
    assert f"{steps} checkpoints at once take" in found.text
    assert looks(ended)["output"].status == "ok"


def test_a_search_looks_among_the_schemes_that_fit(made: Path) -> None:
    found = looks(read(made, "planner.strategies=search", "planner.profile="))
    assert found["strategies"].text.startswith("a search over <1>, <pp2>, ")
    found = looks(read(made, "planner.strategies=search"))
    assert found["strategies"].text.startswith("a search over <1>, <pp2>, <cp4>, <tp2> on 4 ranks")
    assert "96 are admitted" in found["longest"].text


def test_a_list_of_strategies_without_work_for_all_ranks_is_said(made: Path) -> None:
    config = read(made, "planner.strategies=1x<tp2>;1x<1>;1x<tp2>+1x<1>")
    found = looks(config)["strategies"]
    assert found.status == "warning"
    assert found.text.endswith(
        "groups; at best 3 of 4 ranks work: name a strategy whose replicas take all of them"
    )
    assert "ranks work" not in looks(config, gpus=3)["strategies"].text
    assert "ranks work" not in looks(read(made, "planner.strategies=search"))["strategies"].text


def test_batches_without_a_sequence_for_every_replica_are_said(made: Path, tmp_path: Path) -> None:
    config = read(made, f"data.index_directory={tmp_path}/index", "planner.strategies=search")
    assert looks(config, gpus=10_000)["strategies"].status == "ok"
    prepare_sources(config.data)
    assert looks(config)["strategies"].status == "ok"
    found = looks(config, gpus=10_000)["strategies"]
    assert found.status == "warning"
    assert re.search(
        r"groups; a batch has about \d\.\d sequences, and no replica more than 4 ranks: some \d\d of 10,000 "
        r"ranks can work; raise data\.tokens_per_batch, or take fewer ranks$",
        found.text,
    )
    enough = replace(config, data=replace(config.data, tokens_per_batch=None, sequences_per_batch=2_500))
    assert looks(enough, gpus=10_000)["strategies"].status == "ok"


def test_devices_that_are_not_here_are_left_to_the_run(made: Path) -> None:
    assert looks(read(made, "train.device=cpu"))["device"].status == "ok"
    if not torch.cuda.is_available():
        found = looks(read(made, "train.device=auto"))["device"]
        assert (found.status, found.text.partition(":")[0]) == ("ok", "no CUDA device here")
        found = looks(read(made, "train.device=cuda"))["device"]
        assert found.status == "later"
        assert found.text == (
            "train.device = 'cuda': 4 ranks of a node take a CUDA device each, and this machine has 0: "
            "start it where there are 4, or set train.device = 'cpu'"
        )


def test_a_service_that_is_not_installed_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(made, "output.tensorboard=true", "output.wandb_project=p")
    assert looks(config)["services"].text == "TensorBoard, Weights & Biases"
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert looks(config)["services"].code == "extra_missing"


def test_held_memory_is_what_the_runtime_allocates(made: Path) -> None:
    config = read(made, "train.frozen=model.layers.0.*")
    schemes = [Scheme("<1>"), Scheme("<tp2>"), Scheme("<pp2>")]
    held = held_memory(config, schemes, Cluster(2, 2))
    for rank in run_ranks(2, count_bytes, config, [str(scheme) for scheme in schemes]):
        assert rank["buffers"] == held.buffers
        # Shares differ by a few elements, in which parameters do not divide.
        assert rank["home"] == pytest.approx(held.home, rel=0.01)
    assert str(held.scheme) == "<1>"


def test_the_command_prints_a_line_for_each_look(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = listen(monkeypatch)
    command = ["check", str(made / "run.toml"), "--gpus", "4"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == NAMES
    assert [one.name for one in told[1:]] == [f"looking at {name}" for name in NAMES[1:]]
    assert main([*command, "--set", "planner.strategies=8x<1>", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["findings"]] == NAMES
    assert not document["ready"]
    assert [one["code"] for one in document["findings"] if one["code"]] == ["strategy_unplaceable"]


def test_a_warning_is_a_line_and_refuses_nothing(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", str(made / "run.toml"), "--gpus", "4", "--set", "planner.strategies=1x<tp2>"]
    assert main(command) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    line, memory = lines
    assert memory.startswith("warning  memory ")
    assert "planner.memory_mib = 6 " in memory
    assert line.startswith("warning  strategies     1 strategy over <tp2> on 4 ranks")
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ready"]
    assert [one["name"] for one in document["findings"] if one["status"] == "warning"] == [
        "strategies",
        "memory",
    ]


def test_an_unused_memory_of_a_preset_is_no_warning(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (made / "run.toml").read_text().replace("memory_mib = 6\n", "")
    (tmp_path / "run.toml").write_text(text)
    command = ["check", str(tmp_path / "run.toml"), "--gpus", "4", "--preset", "laptop"]
    for override, status in ((), "ok"), (("--set", "planner.memory_mib=6"), "warning"):
        assert main([*command, *override]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[1] == "memory"]
        assert line.startswith(f"{status} ")
        assert " planner.memory_mib = " in line


def test_a_configuration_that_is_refused_is_one_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(made / "run.toml"), "--gpus", "4", "--set", "train.stepz=4"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("refused  configuration  [config_unknown_key] key 'stepz'")


def test_where_no_index_can_be_made_the_data_are_refused(made: Path) -> None:
    # Not even root makes a folder there.
    finding = looks(read(made, "data.index_directory='/proc/index'"))["data"]
    assert (finding.status, finding.code) == ("refused", "index_damaged")
    assert finding.text.startswith("index '/proc/index' cannot be written")
    assert finding.text.endswith("): set data.index_directory to another place")
