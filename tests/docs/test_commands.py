"""Every command of README and docs is run, or stands in a short list with the reason why not."""

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from torch.distributed.run import get_args_parser

from docs.docs_workers import run_in
from docs.page import Block, blocks, commands, pages
from helpers import ROOT, at_least
from hydraulis.cli.commands.train import make_parser as make_train_parser
from hydraulis.cli.main import main, make_parser
from hydraulis.runtime.checkpoint.manifest import MANIFEST
from hydraulis.runtime.checkpoint.reader import read_manifest
from profiles import made_up_profile
from ranks import run_ranks
from test_end_to_end import make_model, write_documents

TUTORIAL, CHECKPOINTS = "docs/tutorial.md", "docs/checkpoints.md"
RUN = """
[model]
path = "{folder}/base"
[data]
sources = [{{files = ["{folder}/documents.jsonl"]}}]
max_tokens = 64
tokens_per_batch = 160
index_directory = "{folder}/index"
index_processes = 1
[train]
steps = 2
[planner]
strategies = ["2x<tp2>", "4x<1>"]
memory_mib = 6
[output]
directory = "runs/demo"
"""
# The least that shows that a command does what it says.
QUICK = {
    "analyze": ["--count", "3"],
    "propose": ["--count", "3"],
    "simulate": ["--count", "3"],
    # Long enough for medians: one pass of times this small may follow no law.
    "profile": ["--seconds", "3", "--precision", "0.1"],
}
QUICK_TRAINING = ["--set", "train.steps=2", "--set", "data.index_processes=1"]
NOT_RUN = {
    r"make [a-z -]+\b.*": "sets up what runs this test: make says here what it would do, and below it trains",
    r"pip install .*": "changes the environment that runs this test: pip says here what it would do",
    r"cargo run .*": "builds release binaries: the tests of crates/hydraulis-bench run them, not optimised",
    r"sbatch .*": "needs Slurm: tests/examples runs the script with the programs that it calls made up",
    r"examples/nodes\.sh .*": "needs nodes: tests/examples runs it as two",
}


def listed() -> Iterator[tuple[str, list[str]]]:
    for page in pages():
        for block in blocks(page):
            for words in commands(block.body) if block.kind == "sh" else ():
                yield page, words


COMMANDS = at_least(30, listed())


def ranks_of(words: list[str]) -> int | None:
    """Give how many ranks a command is run by; None if it is run by none."""
    for option in ("--nproc-per-node", "--ranks"):
        if option in words:
            return int(words[words.index(option) + 1])
    return None


def on_ranks(words: list[str]) -> list[str]:
    """Give what each rank of a command runs: its module, and its arguments without those of the launcher."""
    module = next(word for word in words if word in ("hydraulis", "hydraulis.train"))
    ran = words[words.index(module) :]
    for option in ("--ranks", "--max-restarts"):
        if option in ran:
            first = ran.index(option)
            ran = ran[:first] + ran[first + 2 :]
    return ["hydraulis.train", *ran[2:]] if ran[:2] == ["hydraulis", "train"] else ran


def reason(words: list[str]) -> str | None:
    """Say why a command is not run; None if it is."""
    found = [why for pattern, why in NOT_RUN.items() if re.fullmatch(pattern, " ".join(words))]
    assert len(found) <= 1
    return found[0] if found else None


RUNNABLE = [(page, words) for page, words in COMMANDS if reason(words) is None]
TRAINED = [(page, words) for page, words in RUNNABLE if ranks_of(words) is not None]
STEPS = [(page, words) for page, words in RUNNABLE if ranks_of(words) is None]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make what each page takes for granted, and run all that needs ranks, in one start for each number."""
    common = tmp_path_factory.mktemp("common")
    make_model(common / "base")
    write_documents(common / "documents.jsonl")
    caps = {"<1>": 512, "<tp2>": 1024, "<pp2>": 512, "<tp4>": 8192}
    profile = common / "profile.json"
    profile.write_text(made_up_profile(caps).to_json())
    places = {page: tmp_path_factory.mktemp(Path(page).stem) for page in pages()}
    for page, folder in places.items():
        with contextlib.chdir(folder):
            prepare(page, common)
    # What the page of checkpoints resumes.
    begun = ["hydraulis.train", "run.toml", "--set", "train.steps=1"]
    for number, listed in {4: [(CHECKPOINTS, begun)], 2: [], 8: []}.items():
        listed += [(page, on_ranks(words)) for page, words in TRAINED if ranks_of(words) == number]
        runs = [(places[page], quick(words, profile)) for page, words in at_least(1, listed)]
        for ended, (_, words) in zip(run_ranks(number, run_in, runs)[0], runs, strict=True):
            assert ended.code == 0, f"{words}: {ended.err}"
            assert ended.out.strip()
    checkpoints = places[CHECKPOINTS] / "runs" / "demo" / "checkpoints"
    manifest = dataclasses.replace(read_manifest(checkpoints / "step-00000002"), step=500)
    moved = (checkpoints / "step-00000002").rename(checkpoints / "step-00000500")
    (moved / MANIFEST).write_text(manifest.to_json())
    return places


def prepare(page: str, common: Path) -> None:
    """Make the files that a page names, in the folder at hand."""
    Path("examples").symlink_to(ROOT / "examples")
    Path("run.toml").write_text(RUN.format(folder=common))
    np.save("lengths.npy", np.arange(1, 200))
    write_files(iter(blocks(page)))
    if page == TUTORIAL:
        run_python(blocks(page)[:-1])


def write_files(found: Iterator[Block]) -> None:
    for block in found:
        if block.file and block.kind in ("jsonl", "toml"):
            Path(block.file).write_text(block.body, encoding="utf-8")


def run_python(found: list[Block]) -> None:
    for block in found:
        if block.kind == "python":
            exec(compile(block.body, TUTORIAL, "exec"), {"__name__": "__main__"})


def quick(words: list[str], profile: Path) -> list[str]:
    """Let a command of ranks take less time: few steps, and a profile that is there."""
    if words[0] == "hydraulis":
        return [*words, *on_the_cpu(words), *QUICK[words[1]]]
    named = any(word.startswith("planner.profile=") for word in words)
    shorter = QUICK_TRAINING if "train.steps=1" not in words else []
    given = [] if named else ["--set", f"planner.profile={profile}"]
    return [*words, *on_the_cpu(words), *shorter, *given]


def on_the_cpu(words: list[str]) -> list[str]:
    """Let the ranks of a preset for GPUs be CPU ranks; the file states their memory."""
    return ["--set", "train.device=cpu"] if {"node", "nodes"} & set(words) else []


@pytest.mark.parametrize(
    ("page", "words"), STEPS, ids=[f"{page}: {' '.join(words)}" for page, words in STEPS]
)
def test_a_command_of_a_page_succeeds_and_writes_the_stated_files(
    page: str,
    words: list[str],
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folders[page])
    assert words[0] == "hydraulis"
    given = [*words[1:], *on_the_cpu(words), *QUICK.get(words[1], ())]
    assert main(given) == 0, capfd.readouterr().err
    # The native module writes to the file descriptor.
    assert capfd.readouterr().out.strip()
    for option, name in pairwise(words):
        if option in ("--figure", "--trace", "--output"):
            assert Path(name).exists(), name
    if words[1] == "report":
        assert (Path(words[2]) / "report.html").stat().st_size > 10_000


def test_the_tutorial_ends_with_a_model_that_speaks(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folders[TUTORIAL])
    if not Path("model").exists():
        assert main(["export", "runs/stories", "--output", "model"]) == 0
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_python(blocks(TUTORIAL)[-1:])
    assert capsys.readouterr().out.startswith("def read(")


def test_the_tutorials_configuration_is_the_example() -> None:
    (shown,) = (block.body for block in blocks(TUTORIAL) if block.kind == "toml")
    given = re.sub(
        r"^#.*\n", "", (ROOT / "examples/own.toml").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert shown == given


def test_each_command_is_run_or_has_a_reason_and_each_reason_applies() -> None:
    assert {ranks_of(words) for _, words in TRAINED} == {2, 4, 8}
    assert all(words[0] == "hydraulis" for _, words in STEPS)
    skipped = [" ".join(words) for _, words in COMMANDS if reason(words) is not None]
    for pattern in NOT_RUN:
        assert any(re.fullmatch(pattern, line) for line in skipped), pattern
    at_least(20, STEPS)
    at_least(8, TRAINED)


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="needs the environment that make sets up")
def test_make_demo_trains(folders: dict[str, Path]) -> None:
    folder = folders[TUTORIAL].parent
    config = folder / "demo.toml"
    config.write_text(RUN.format(folder=next(folder.glob("common*"))), encoding="utf-8")
    options = [
        f"CONFIG={config}",
        f"RUN={folder / 'demo'}",
        f"PROFILE={next(folder.glob('common*'))}/profile.json",
    ]
    # make itself runs the tests: what it told them is not for this one.
    told = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(
        ["make", "demo", *options], cwd=ROOT, env=told, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    assert f"files of {folder / 'demo'}:" in made.stdout
    assert len((folder / "demo" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("words", [words for _, words in COMMANDS], ids=" ".join)
def test_commands_that_are_not_run_are_well_formed(words: list[str]) -> None:
    match words:
        case ["hydraulis", *options]:
            make_parser().parse_args(options)
        case ["torchrun", *options]:
            launched = get_args_parser().parse_args(options)
            assert launched.module
            parser = {"hydraulis": make_parser, "hydraulis.train": make_train_parser}
            parser[launched.training_script]().parse_args(launched.training_script_args)
        case ["make", *targets]:
            known = {name for name, _, value in (one.partition("=") for one in targets) if value}
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert known <= set(re.findall(r"^(\w+) \?=", makefile, re.MULTILINE))
            said = subprocess.run(
                ["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert said.returncode == 0, said.stderr
            at_least(3, said.stdout.splitlines())
        case ["pip", "install", *packages]:
            # An environment with all extras lacks nothing of them; of one that is not there pip only warns.
            dry = ["--dry-run", "--no-index", "--no-build-isolation", *packages]
            said = subprocess.run(
                [sys.executable, "-m", "pip", "install", *dry],
                cwd=ROOT,
                env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert said.returncode == 0, said.stderr
            assert "does not provide the extra" not in said.stderr
        case ["cargo", "run", *options]:
            binary = options[options.index("--bin") + 1]
            assert list((ROOT / "crates/hydraulis-bench/src/bin").glob(f"{binary}*")) != []
        case ["sbatch" | "examples/nodes.sh", *_]:
            (script,) = (word for word in words if word.endswith(".sh"))
            subprocess.run(["sh", "-n", ROOT / script], check=True)
            # After its own arguments come those of training.
            make_train_parser().parse_args(words[words.index("run.toml") :])
        case _:
            pytest.fail(f"no test runs {words}")
