"""Workers of test_run_data.py."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from hydraulis.config.data import DataConfig
from hydraulis.config.layered.table import from_table
from hydraulis.data.corpus import Corpus
from hydraulis.data.records import json_lines
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.data.tokens import plain_tokens
from hydraulis.errors import HydraulisError
from hydraulis.runtime.ranks import rank_zero
from hydraulis.train.run_data import load_data
from runtime.tiny import made_up_corpus


class Report(NamedTuple):
    """What one rank saw."""

    texts: list[str]
    standard_library: int
    codes: list[str]
    heartbeats: int


def config_of(folder: str, name: str, index: str, **settings: Any) -> DataConfig:
    table: dict[str, Any] = {
        "tokens_per_batch": 8,
        "index_processes": 1,
        "index_directory": f"{folder}/{index}",
    }
    if name:
        table["sources"] = [{"files": [f"{folder}/{name}"]}]
    return from_table(DataConfig, table | settings, "data")


def load_and_refuse(folder: str) -> Report:
    setattr(rank_zero, "_HEARTBEAT_S", 0.0)  # noqa: B010
    setattr(json_lines, "PIECE_BYTES", 200)  # noqa: B010
    setattr(StandardLibrary, "load", _made_up)  # noqa: B010
    beats = 0

    def go_on() -> bool:
        nonlocal beats
        beats += 1
        return False

    good = config_of(folder, "t.jsonl", "index")
    data = load_data(good, _only_on_rank_zero, go_on)
    assert data is not None
    train = data.train
    texts = [plain_tokens(train.read(index)).tobytes().decode() for index in range(len(train))]
    codes = [_code(lambda: load_data(config_of(folder, "bad.jsonl", "index"), _silent, go_on))]
    codes.append(_code(lambda: _load_from_another_folder(folder)))
    stopped = load_data(config_of(folder, "t.jsonl", "stopped"), _silent, lambda: True)
    codes.append("stopped" if stopped is None else "went on")
    short = config_of(folder, "", "index", max_tokens=60, too_long="refuse")
    codes.append(_code(lambda: load_data(short, _silent, go_on)))
    shares: list[float] = []
    library = load_data(config_of(folder, "", "index"), shares.append, go_on)
    assert library is not None
    assert shares == ([0.5] if dist.get_rank() == 0 else [])
    return Report(texts, len(library.train), codes, beats)


def _made_up(progress: Callable[[int, int], None]) -> Corpus:
    progress(2, 4)
    return made_up_corpus(256)


def _load_from_another_folder(folder: str) -> None:
    """Name the index relative to a folder of the rank's own, as on nodes that share no disk."""
    here = Path.cwd()
    place = Path(folder, f"node-{dist.get_rank()}")
    place.mkdir()
    os.chdir(place)
    try:
        load_data(replace(config_of(folder, "t.jsonl", ""), index_directory="index"), _silent, lambda: False)
    finally:
        os.chdir(here)


def _code(load: Callable[[], object]) -> str:
    try:
        load()
    except HydraulisError as error:
        return error.code
    return "none"


def _only_on_rank_zero(_: float) -> None:
    assert dist.get_rank() == 0


def _silent(_: float) -> None:
    pass
