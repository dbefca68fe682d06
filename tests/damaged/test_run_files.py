"""No damaged file of a run gives a traceback, a silently wrong number, or a write elsewhere.

The file is either refused with a code, or read; where a digest covers it, its content is what was written.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from damaged.damage import CASES, TIMEOUT_S, Damaged, accepted, damaged_bytes, damaged_json, pick
from damaged.damaged_workers import read_losses, train, use_damaged_runs
from data.index.small_index import job_of, write_documents
from helpers import at_least
from hydraulis.config.hugging_face.write import to_hugging_face
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.files import open_index
from hydraulis.files import file_digest, with_digest
from hydraulis.profile.refine import refine
from hydraulis.report.imbalance import balances
from hydraulis.report.page import numbers
from hydraulis.report.run import read_run
from hydraulis.runtime.checkpoint.manifest import MANIFEST, ShardRecord
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest, verify_shards
from hydraulis.runtime.hugging_face.adapters import base_folder
from hydraulis.runtime.records.run_directory import RunDirectory
from hydraulis.runtime.recovery.copy_file import is_whole, write_copy
from hydraulis.runtime.recovery.memory_folder import CopyName
from hydraulis.runtime.recovery.run_start import named_starts
from hydraulis.runtime.state.parameters import ModelParameters
from profiles import made_up_profile
from ranks import run_ranks
from report.made_up_run import write_run
from runtime.checkpoint import test_reader
from runtime.hugging_face import test_weights
from runtime.records.test_recorder import record
from runtime.records.test_resumed_records import recorded
from small_model import small_config

# Damaged runs that one process uses.
BATCH = 5
pytestmark = pytest.mark.timeout(TIMEOUT_S)


def test_a_checkpoint_is_read_as_it_was_written_or_refused(tmp_path: Path) -> None:
    whole = tmp_path / "step-00000001"
    whole.mkdir()
    manifest = test_reader.write(whole, [10, 20])
    (whole / MANIFEST).write_text(manifest.to_json())
    # Copies keep the name, which has the step.
    (tmp_path / "whole").mkdir()
    whole.rename(tmp_path / "whole" / whole.name)

    def read(folder: Path) -> torch.Tensor:
        found = read_manifest(folder / whole.name)
        verify_shards(folder / whole.name, found, range(found.world_size))
        assert found == manifest
        with CheckpointReader(folder / whole.name, found) as reader:
            return torch.cat(
                [reader.read("w", 0, test_reader.ELEMENTS, name) for name in ("master", "exp_avg")]
            )

    expected = read(tmp_path / "whole")
    results = []
    for folder, _ in Damaged(tmp_path / "whole", tmp_path, 1):
        results.append(accepted(lambda: torch.testing.assert_close(read(folder), expected, rtol=0, atol=0)))  # noqa: B023
    assert sum(results) < len(results) / 2


def test_an_edited_manifest_is_read_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    manifest = test_reader.write(folder, [10, 20])
    rng = np.random.default_rng(2)
    results = []
    for _ in range(CASES):
        document = json.loads(damaged_json([manifest.to_json().encode()], rng))
        if isinstance(document, dict):
            document.pop("digest", None)
            (folder / MANIFEST).write_text(with_digest(document))

        def read() -> None:
            found = read_manifest(folder)
            verify_shards(folder, found, range(found.world_size))
            with CheckpointReader(folder, found) as reader:
                for parameter in found.parameters:
                    reader.read(parameter.name, 0, parameter.intervals[-1][2])

        results.append(accepted(read))
    assert 0 < sum(results) < len(results)


def test_a_shard_with_a_matching_digest_is_read_or_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    results = []
    for _ in range(CASES):
        manifest = test_reader.write(tmp_path, [10])
        shard = tmp_path / manifest.shards[0].file
        if rng.random() < 0.5:
            shape = tuple(int(size) for size in rng.integers(0, 11, rng.integers(0, 3)))
            dtype = pick((torch.float64, torch.float32, torch.int64, torch.bool), rng)
            safetensors.torch.save_file(
                {pick(("master/w", "w"), rng): torch.zeros(shape, dtype=dtype)}, shard
            )
        else:
            shard.write_bytes(damaged_bytes(shard.read_bytes(), rng))
        written = ShardRecord(file=shard.name, bytes=shard.stat().st_size, digest=file_digest(shard))
        manifest = dataclasses.replace(manifest, shards=(written, manifest.shards[1]))
        with CheckpointReader(tmp_path, manifest) as reader:
            results.append(accepted(lambda: reader.read("w", 0, 10)))
    assert 0 < sum(results) < len(results)


def test_records_never_stop_a_resume(tmp_path: Path) -> None:
    whole = recorded(tmp_path)
    for folder, path in Damaged(whole, tmp_path, 4):

        def go_on() -> None:
            recorder = record(RunDirectory(folder), 60, trace_step=None)  # noqa: B023
            recorder.go_on(3)
            recorder.used()
            recorder.factors(3)

        # A link or a folder in its place is the one thing that is refused.
        is_other = path.is_symlink() or path.is_dir()
        assert accepted(go_on) is not (is_other and path.name != "trace.json"), path
        if not is_other:
            files = ("metrics.jsonl", "plans.jsonl", "times.jsonl")
            contents = [(folder / name).read_bytes() if (folder / name).exists() else b"" for name in files]
            assert len({content.count(b"\n") for content in contents}) == 1
            steps = [json.loads(line)["step"] for line in contents[0].splitlines()]
            assert steps == sorted(set(steps))
            assert max(steps, default=0) <= 3


def test_a_run_is_reported_and_refined_or_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")

    def report(folder: Path) -> None:
        run = read_run(folder)
        json.dumps(numbers(run, balances(run)), allow_nan=False)

    results = []
    for folder, _ in Damaged(tmp_path / "run", tmp_path, 5):
        results.append(accepted(lambda: report(folder)))  # noqa: B023
        accepted(lambda: refine(folder))  # noqa: B023
    assert len(results) / 2 < sum(results) < len(results)


def test_a_copy_in_memory_is_the_one_that_was_written_or_lost(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    name = CopyName(3, 1, 4, 1)
    tensors = {
        "master/w": torch.arange(3_001, dtype=torch.float32)[1:],
        "frozen/f": torch.ones(7, dtype=torch.bfloat16),
        "exp_avg/w": torch.zeros(0),
    }
    write_copy(whole / str(name), name, tensors, {"step": "3"})
    assert is_whole(whole / str(name), name)
    assert not is_whole(whole / str(name), dataclasses.replace(name, shard=2))
    for _, path in Damaged(whole, tmp_path, 20):
        if is_whole(path, name):
            assert safetensors.torch.load_file(path).keys() == tensors.keys()
            for key, tensor in safetensors.torch.load_file(path).items():
                assert torch.equal(tensor, tensors[key])


CONFIG = """
[model]
path = "{folder}/base"

[data]
sources = [{{files = ["{folder}/a.jsonl", "{folder}/b.jsonl"]}}]
max_tokens = 64
tokens_per_batch = 400
held_out = 0.1
index_directory = "{folder}/index"

[train]
steps = 6
device = "cpu"
dtype = "float64"
evaluate_every = 2
trace_step = 2

[planner]
memory_mib = 64
strategies = ["1x<1>"]
profile = "{folder}/profile.json"

[checkpoint]
every_steps = 2
keep_best = true

[samples]
every = 2
prompts = ["a"]
tokens = 2

[output]
directory = "{folder}/run"
"""


def test_a_damaged_run_is_resumed_to_the_bit_or_refused(tmp_path: Path) -> None:
    write_documents(tmp_path)
    (tmp_path / "base").mkdir()
    config = small_config(vocab_size=256)
    (tmp_path / "base" / "config.json").write_text(json.dumps(to_hugging_face(config, 64)))
    (tmp_path / "base" / "tokenizer_config.json").write_text("{}")
    parameters = ModelParameters.from_config(config)
    test_weights.write(tmp_path / "base", 1, test_weights.tensors(parameters))
    (tmp_path / "profile.json").write_text(made_up_profile({"<1>": 400}).to_json())
    (tmp_path / "run.toml").write_text(CONFIG.format(folder=tmp_path))
    arguments = [str(tmp_path / "run.toml")]
    run_ranks(1, train, [*arguments, "--set", "train.steps=6"])
    expected = read_losses(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    outcomes = [
        outcome
        for batch in range(CASES // 12 // BATCH)
        for outcome in run_ranks(1, use_damaged_runs, tmp_path, arguments, 21 + batch, BATCH)[0]
    ]
    for outcome in outcomes:
        assert set(outcome.codes) <= {0, 2}, outcome
        assert "Traceback" not in outcome.text, outcome
        assert outcome.losses in ([], expected), outcome
    assert any(outcome.losses for outcome in outcomes)


def test_a_pipe_in_place_of_a_file_blocks_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    step = tmp_path / "step-00000001"
    step.mkdir()
    (step / MANIFEST).write_text(test_reader.write(step, [10, 20]).to_json())
    (step / "config.json").touch()
    (tmp_path / "data").mkdir()
    write_documents(tmp_path / "data")
    index = ensure_index(job_of(tmp_path / "data"), tmp_path / "index", 1)
    name = CopyName(3, 0, 1, 0)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / str(name)).touch()
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "memory").touch()

    def read(folder: Path) -> object:
        match folder.name:
            case "run":
                accepted(lambda: refine(folder))
                return read_run(folder)
            case "memory":
                return is_whole(folder / str(name), name)
            case "start":
                return named_starts(folder)
            case step.name:
                base_folder(folder)
                found = read_manifest(folder)
                verify_shards(folder, found, range(found.world_size))
                return found
        return open_index(folder)

    for folder in (tmp_path / "run", step, index, tmp_path / "memory", tmp_path / "start"):
        for path in at_least(1, folder.iterdir()):
            aside = path.rename(tmp_path / "aside")
            os.mkfifo(path)
            accepted(lambda: read(folder))  # noqa: B023
            path.unlink()
            aside.rename(path)
