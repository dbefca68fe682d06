"""Small documents, the job that indexes them, and views of the result."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydraulis.data.corpus import Corpus
from hydraulis.data.index.job import IndexJob, Piece
from hydraulis.data.tokens import plain_tokens

NUM_DOCUMENTS = 200


def write_documents(folder: Path) -> list[str]:
    rng = np.random.default_rng(0)
    texts = ["the fox " * int(n) + f"#{i}" for i, n in enumerate(rng.integers(0, 30, NUM_DOCUMENTS))]
    half = NUM_DOCUMENTS // 2
    for name, part in (("a", texts[:half]), ("b", texts[half:])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in part)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return texts


def job_of(folder: Path, **changes: Any) -> IndexJob:
    job = IndexJob(
        paths=(folder / "a.jsonl", folder / "b.jsonl"),
        format="text",
        fields=("text",),
        tokenizer="bytes",
        chat_template="",
        eos_token="",
        broken_records="refuse",
    )
    return replace(job, **changes)


def texts_of(corpus: Corpus) -> list[str]:
    return [plain_tokens(corpus.read(index)).tobytes().decode() for index in range(len(corpus))]


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.name != "lock")
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def write_lines(path: Path, records: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def counted_pieces(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """List the pieces that are read from now on, in order."""
    read: list[Piece] = []
    blocks = IndexJob.blocks

    def counted(job: IndexJob, piece: Piece, *others: Any) -> Any:
        read.append(piece)
        return blocks(job, piece, *others)

    monkeypatch.setattr(IndexJob, "blocks", counted)
    return read
