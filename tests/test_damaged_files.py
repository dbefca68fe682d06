"""No damaged file of a run or a data set gives a traceback, a silently wrong number, or a write elsewhere.

Each case damages one file at random: bytes as disks and copies do, or a value of its JSON as people do. The
file is then either refused with a code, or read; where a digest covers it, its content is what was written.
`make soak` draws many more cases.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from config.hugging_face.test_read import LLAMA
from config.run_file import MINIMAL, field_names
from data.index.small_index import job_of, texts_of, write_documents, write_lines
from data.sources.test_token_files import write_megatron
from helpers import IS_SOAK
from hydraulis.config.hugging_face.read import from_hugging_face, read_max_positions, stated_fields
from hydraulis.config.run import load
from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.files import open_index
from hydraulis.data.sources.token_files import open_token_file
from hydraulis.data.tokens import plain_tokens
from hydraulis.errors import HydraulisError
from hydraulis.files import file_digest, with_digest
from hydraulis.profile.refine import refine
from hydraulis.report.imbalance import balances
from hydraulis.report.page import numbers
from hydraulis.report.run import read_run
from hydraulis.runtime.checkpoint.manifest import MANIFEST, ShardRecord
from hydraulis.runtime.checkpoint.reader import CheckpointReader, read_manifest, verify_shards
from hydraulis.runtime.records.run_directory import RunDirectory
from report.made_up_run import write_run
from runtime.checkpoint import test_reader
from runtime.records.test_recorder import record
from runtime.records.test_resumed_records import recorded

CASES = 2_000 if IS_SOAK else 60
pytestmark = pytest.mark.timeout(3_600 if IS_SOAK else 60)

Random = np.random.Generator
ODD: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    1e308,
    float("nan"),
    "",
    "\ud800",
    "../../x",
    "\0",
    [],
    [[]],
    {},
    {"a": 1},
)


def damaged_bytes(content: bytes, rng: Random) -> bytes:
    """Damage a file as a disk, a crash or a copy does."""
    start, stop = sorted(int(place) for place in rng.integers(0, len(content) + 1, 2))
    match int(rng.integers(8)):
        case 0:
            return content[:start]
        case 1:
            return content[:start] + bytes(stop - start) + content[stop:]
        case 2:
            return content[:start] + content[stop:]
        case 3:
            return content[:stop] + content[start:]
        case 4:
            return content[:start] + rng.bytes(stop - start) + content[stop:]
        case 5:
            return content[:start] + b"[" * 5_000 + content[start:]
        case _:
            # One bit is the least, so it is tried most often.
            changed = bytearray(content or b"\0")
            changed[min(start, len(changed) - 1)] ^= 1 << int(rng.integers(8))
            return bytes(changed)


def damaged_json(documents: list[bytes], rng: Random) -> bytes:
    """Replace or remove a value somewhere in one of some JSON documents; a document is a line."""
    lines = list(documents)
    number = int(rng.integers(len(lines)))
    document = {"": json.loads(lines[number])}
    holder, key = pick(list(places(document)), rng)
    if rng.random() < 0.2 and holder is not document:
        del holder[key]
    else:
        holder[key] = pick(ODD, rng)
    lines[number] = json.dumps(document[""]).encode()
    return b"".join(line + b"\n" for line in lines)


def places(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container and key of a document."""
    for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from places(holder[key])


def pick(choices: Any, rng: Random) -> Any:
    return choices[int(rng.integers(len(choices)))]


def damage(folder: Path, rng: Random, outside: Path) -> Path:
    """Damage one file of a folder, and return its path."""
    path: Path = pick(sorted(one for one in folder.rglob("*") if one.is_file() and one.name != "lock"), rng)
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl") and rng.random() < 0.5:
        path.write_bytes(damaged_json(content.splitlines() if path.suffix == ".jsonl" else [content], rng))
    elif rng.random() < 0.1:
        path.unlink()
        if rng.random() < 0.5:
            path.symlink_to(outside)
    else:
        path.write_bytes(damaged_bytes(content, rng))
    return path


def accepted(read: Callable[[], object]) -> bool:
    """Whether it is read; anything but a refusal with a code fails the test."""
    try:
        read()
    except HydraulisError as error:
        refusal = error
    else:
        return True
    assert refusal.code
    assert 0 < len(str(refusal)) < 9_000
    return False


class Damaged:
    """Copies of a folder, each with one damaged file.

    Attributes:
        outside: File that a link may lead to.
    """

    def __init__(self, whole: Path, tmp_path: Path, seed: int) -> None:
        self._whole, self._copy = whole, tmp_path / "damaged"
        self._rng = np.random.default_rng(seed)
        self.outside = tmp_path / "outside"
        self.outside.write_bytes(b"precious\n")

    def __iter__(self) -> Iterator[tuple[Path, Path]]:
        for _ in range(CASES):
            shutil.copytree(self._whole, self._copy)
            yield self._copy, damage(self._copy, self._rng, self.outside)
            assert self.outside.read_bytes() == b"precious\n"
            shutil.rmtree(self._copy)


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
            recorder.factors()

        # A link is the one thing that is refused.
        assert accepted(go_on) is not (path.is_symlink() and path.name != "trace.json"), path
        if not path.is_symlink():
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


def test_an_index_is_read_as_it_was_built_or_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    texts = write_documents(tmp_path / "data")
    whole = ensure_index(job_of(tmp_path / "data"), tmp_path / "index", 1)

    def read(folder: Path) -> None:
        corpus = open_index(folder)
        assert texts_of(corpus) == texts
        assert corpus.target_counts.tolist() == [len(text) - 1 for text in texts]

    results = [accepted(lambda: read(folder)) for folder, _ in Damaged(whole, tmp_path, 6)]  # noqa: B023
    assert sum(results) < len(results) / 2


@pytest.mark.parametrize("kind", ["numpy", "megatron"])
def test_a_file_of_tokens_is_read_or_refused(tmp_path: Path, kind: str) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    if kind == "megatron":
        write_megatron(whole)
    else:
        np.save(whole / "x.npy", np.arange(40, dtype=np.uint16).reshape(4, 10))
    name = "x.idx" if kind == "megatron" else "x.npy"

    def read(folder: Path) -> None:
        corpus = open_token_file(folder / name)
        for index in range(min(20, len(corpus))):
            assert len(plain_tokens(corpus.read(index))) == corpus.lengths[index] > 0

    results = [accepted(lambda: read(folder)) for folder, _ in Damaged(whole, tmp_path, 7)]  # noqa: B023
    assert 0 < sum(results) < len(results)


def test_a_configuration_is_read_or_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "run.toml").write_text(MINIMAL)
    results = [
        accepted(lambda: load(folder / "run.toml", []))  # noqa: B023
        for folder, _ in Damaged(whole, tmp_path, 8)
    ]
    assert 0 < sum(results) < len(results)


def test_a_models_configuration_is_read_or_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps(LLAMA) + "\n")
    results = []
    for _, path in Damaged(whole, tmp_path, 9):
        results += [
            accepted(lambda: read(path))  # noqa: B023
            for read in (from_hugging_face, read_max_positions, stated_fields)
        ]
    assert 0 < sum(results) < len(results)


def test_a_value_of_a_configuration_is_read_or_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(MINIMAL)
    rng = np.random.default_rng(10)
    values = ["", "-1", "0", str(2**63), str(10**400), "1e308", "nan", "inf", "[[[]]]", "[" * 3_000, "'a\0'"]
    values += ["{a = 1}", "0x" + "f" * 9_000, "2020-01-01", "\udcff", "'\ud800'", "x" * 9_000, "true"]
    results = []
    for _ in range(CASES):
        override = f"{pick(field_names(), rng)}={pick(values, rng)}"
        results.append(accepted(lambda: load(tmp_path / "run.toml", [override])))  # noqa: B023
    assert 0 < sum(results) < len(results)


RECORDS: dict[str, dict[str, Any]] = {
    "text": {"text": "the fox"},
    "completion": {"prompt": "a", "completion": "bc"},
    "chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "tokens": {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_file_of_records_is_indexed_or_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "whole").mkdir()
    write_lines(tmp_path / "whole" / "a.jsonl", [RECORDS[kind]] * 3)
    results = []
    # Each case waits for the disk several times.
    for folder, path in islice(Damaged(tmp_path / "whole", tmp_path, 11), CASES // 4):
        job = job_of(
            folder,
            paths=(path,),
            format=kind,
            fields=tuple(RECORDS[kind]),
            chat_template="chatml" if kind == "chat" else "",
            broken_records="skip",
        )

        def index() -> None:
            corpus = open_index(ensure_index(job, folder / "index", 1))  # noqa: B023
            for number in range(len(corpus)):
                corpus.read(number)

        results.append(accepted(index))
    # Broken records are skipped, so most files are read.
    assert any(results)
