"""Any slice of a checkpoint, whatever the shards it was cut into; and shards that are not whole."""

import dataclasses
import errno
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import refused, unopened
from hydraulis.files import file_digest
from hydraulis.runtime.checkpoint.manifest import (
    MANIFEST,
    DataCursor,
    Interval,
    Manifest,
    ParameterRecord,
    ShardRecord,
)
from hydraulis.runtime.checkpoint.reader import CheckpointReader, check_shards, read_manifest, verify_shards
from small_model import small_config

ELEMENTS = 30
VALUES = torch.arange(ELEMENTS, dtype=torch.float64)


def write(folder: Path, edges: Sequence[int]) -> Manifest:
    """Write one parameter cut at these edges, a shard for each piece; an empty piece is in no shard."""
    bounds = [0, *sorted(edges), ELEMENTS]
    intervals: list[Interval] = []
    shards = []
    for rank, (start, end) in enumerate(pairwise(bounds)):
        path = folder / f"{rank}.safetensors"
        tensors = {"master/w": VALUES[start:end], "exp_avg/w": -VALUES[start:end]} if start < end else {}
        safetensors.torch.save_file(tensors, path)
        shards.append(ShardRecord(file=path.name, bytes=path.stat().st_size, digest=file_digest(path)))
        if start < end:
            intervals.append((rank, start, end))
    return Manifest(
        version="0.1.0",
        moments=("exp_avg",),
        step=1,
        world_size=len(shards),
        dtype="float64",
        frozen_dtype="bfloat16",
        model=small_config(),
        data=DataCursor(
            fingerprint="",
            seed=0,
            tokens_per_batch=1,
            sequences_per_batch=None,
            epoch_end="continue",
            max_tokens=2,
            epochs=None,
            next_batch="",
        ),
        shards=tuple(shards),
        parameters=(ParameterRecord(name="w", shape=(5, 6), trained=True, intervals=tuple(intervals)),),
    )


def test_frozen_parameters_are_read_in_their_own_type(tmp_path: Path) -> None:
    manifest = write(tmp_path, [10])
    frozen = ParameterRecord(name="f", shape=(4,), trained=False, intervals=((0, 0, 4),))
    manifest = dataclasses.replace(manifest, parameters=(*manifest.parameters, frozen))
    path = tmp_path / manifest.shards[0].file
    for dtype in (torch.bfloat16, torch.float64):
        safetensors.torch.save_file({"frozen/f": torch.arange(4, dtype=dtype)}, path)
        record = dataclasses.replace(manifest.shards[0], bytes=path.stat().st_size)
        whole = dataclasses.replace(manifest, shards=(record, *manifest.shards[1:]))
        with CheckpointReader(tmp_path, whole) as reader:
            if dtype == torch.bfloat16:
                assert torch.equal(reader.read("f", 1, 3), torch.tensor([1, 2], dtype=dtype))
                continue
            with refused("checkpoint_damaged", "torch.float64", "bfloat16"):
                reader.read("f", 1, 3)


@given(
    edges=st.lists(st.integers(0, ELEMENTS), max_size=6),
    ends=st.lists(st.integers(0, ELEMENTS), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_any_slice_is_read_from_any_cut(
    tmp_path_factory: pytest.TempPathFactory, edges: list[int], ends: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    with CheckpointReader(folder, write(folder, edges)) as reader:
        start, end = ends
        assert torch.equal(reader.read("w", start, end), VALUES[start:end])
        assert torch.equal(reader.read("w", start, end, "exp_avg"), -VALUES[start:end])


def test_only_the_shards_that_are_needed_are_opened(tmp_path: Path) -> None:
    manifest = write(tmp_path, [10, 20])
    (tmp_path / "2.safetensors").unlink()
    with CheckpointReader(tmp_path, manifest) as reader:
        assert torch.equal(reader.read("w", 3, 20), VALUES[3:20])


@pytest.mark.parametrize("damage", ["missing", "cut", "grown", "other", "short"])
def test_a_shard_that_is_not_whole_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    manifest = write(tmp_path, [10, 20])
    shard = tmp_path / "1.safetensors"
    content = shard.read_bytes()
    if damage == "missing":
        shard.unlink()
    elif damage == "cut":
        shard.write_bytes(content[:-5])
    elif damage == "grown":
        shard.write_bytes(content + b"\0")
    elif damage == "other":
        shard.write_bytes(b"\xff" * len(content))
    else:
        safetensors.torch.save_file({"master/w": VALUES[:9].clone(), "exp_avg/w": VALUES[:11].clone()}, shard)
        assert shard.stat().st_size == len(content)
    with (
        CheckpointReader(tmp_path, manifest) as reader,
        refused("checkpoint_damaged", "1.safetensors"),
    ):
        reader.read("w", 0, ELEMENTS)


def test_a_shard_of_another_interval_or_type_is_refused(tmp_path: Path) -> None:
    manifest = write(tmp_path, [10, 22])
    (parameter,) = manifest.parameters
    other = dataclasses.replace(parameter, intervals=((1, 0, 10), (0, 10, 22), (2, 22, 30)))
    for wrong, says in (
        (dataclasses.replace(manifest, parameters=(other,)), "has shape [12] and must have [10]"),
        (dataclasses.replace(manifest, dtype="float32"), "has type torch.float64 and must have float32"),
    ):
        with CheckpointReader(tmp_path, wrong) as reader, refused("checkpoint_damaged", says):
            reader.read("w", 0, 10)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "permissions"),
        (errno.EPERM, "permissions"),
        (errno.EIO, "disk"),
        (errno.ESTALE, "disk"),
        (errno.EMFILE, "ulimit -n"),
    ],
)
def test_a_sound_checkpoint_that_the_system_does_not_read_is_not_called_damaged(
    tmp_path: Path, number: int, remedy: str
) -> None:
    manifest = write(tmp_path, [10, 20])
    (tmp_path / MANIFEST).write_text(manifest.to_json())
    shard = tmp_path / manifest.shards[1].file
    reason = os.strerror(number)

    def read() -> None:
        with CheckpointReader(tmp_path, manifest) as reader:
            reader.read("w", 0, ELEMENTS)

    for path, reading in (
        (tmp_path / MANIFEST, lambda: read_manifest(tmp_path)),
        (shard, lambda: check_shards(tmp_path, manifest)),
        (shard, lambda: verify_shards(tmp_path, manifest, range(3))),
        (shard, read),
    ):
        with unopened(path, number), refused("file_unreadable", path, reason, remedy) as caught:
            reading()
        assert "rm -r" not in str(caught.value)
        reading()


@pytest.mark.parametrize("damage", ["bit", "swapped", "link", "missing"])
def test_a_shard_with_other_content_is_found_by_its_digest(tmp_path: Path, damage: str) -> None:
    manifest = write(tmp_path, [10, 20])
    verify_shards(tmp_path, manifest, range(3))
    shards = [tmp_path / record.file for record in manifest.shards]
    content = shards[1].read_bytes()
    if damage == "bit":
        shards[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "swapped":
        shards[1].write_bytes(shards[0].read_bytes())
        shards[0].write_bytes(content)
    elif damage == "link":
        shards[1].unlink()
        shards[1].symlink_to(shards[2])
    else:
        shards[1].unlink()
    with refused("checkpoint_damaged", "1.safetensors"):
        verify_shards(tmp_path, manifest, [1, 2])
    verify_shards(tmp_path, manifest, [2])


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_shard_does_not_block(tmp_path: Path) -> None:
    manifest = write(tmp_path, [10])
    empty = dataclasses.replace(manifest.shards[1], bytes=0)
    manifest = dataclasses.replace(manifest, shards=(manifest.shards[0], empty))
    (tmp_path / empty.file).unlink()
    os.mkfifo(tmp_path / empty.file)
    for check in (check_shards, lambda folder, whole: verify_shards(folder, whole, [1])):
        with refused("checkpoint_damaged", tmp_path / empty.file):
            check(tmp_path, manifest)


def test_a_manifest_in_the_folder_of_another_step_is_refused(tmp_path: Path) -> None:
    manifest = write(tmp_path, [10])
    for name, is_read in (("step-00000001", True), ("best", True), ("step-00000002", False)):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text(manifest.to_json())
        if is_read:
            assert read_manifest(tmp_path / name) == manifest
        else:
            with refused("checkpoint_damaged", "step 1", "step 2"):
                read_manifest(tmp_path / name)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"{}"])
def test_a_missing_or_incomplete_manifest_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / MANIFEST).write_bytes(content)
    with refused("run_unreadable" if content == b"{}" else "checkpoint_damaged", MANIFEST):
        read_manifest(tmp_path)
