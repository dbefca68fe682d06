"""Fixtures of the tests of indexes."""

import pytest

from hydraulis.data.index import builder
from hydraulis.data.records import json_lines


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "PIECE_BYTES", 2000)
    monkeypatch.setattr(builder, "_SAVE_S", 0.0)
