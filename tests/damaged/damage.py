"""Damages files at random: bytes as disks, crashes and copies do, or a value of their JSON as people do.

`make soak` draws many more cases.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from helpers import IS_SOAK
from hydraulis.errors import HydraulisError

CASES = 2_000 if IS_SOAK else 60
TIMEOUT_S = 3_600 if IS_SOAK else 60

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
        match int(rng.integers(4)):
            case 0:
                path.mkdir()
            case 1 | 2:
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

    Args:
        whole: Folder to copy.
        tmp_path: Folder of the copies.
        seed: Seed of the damage.
        cases: Number of copies.
    """

    def __init__(self, whole: Path, tmp_path: Path, seed: int, cases: int = CASES) -> None:
        self._whole, self._copy = whole, tmp_path / "damaged"
        self._cases = cases
        self._rng = np.random.default_rng(seed)
        self.outside = tmp_path / "outside"
        self.outside.write_bytes(b"precious\n")

    def __iter__(self) -> Iterator[tuple[Path, Path]]:
        for _ in range(self._cases):
            shutil.copytree(self._whole, self._copy, symlinks=True)
            yield self._copy, damage(self._copy, self._rng, self.outside)
            assert self.outside.read_bytes() == b"precious\n"
            shutil.rmtree(self._copy)
