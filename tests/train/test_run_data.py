"""The data of a run: made on rank 0, read by all, refused by all."""

import json
from pathlib import Path

from ranks import run_ranks
from train.run_data_workers import load_and_refuse


def test_every_rank_reads_what_rank_zero_indexed_and_all_refuse_the_same(tmp_path: Path) -> None:
    rows = [{"text": f"document {n}" * (1 + n % 3)} for n in range(50)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "bad.jsonl").write_text('{"text": 3}\n')
    first, second = run_ranks(2, load_and_refuse, str(tmp_path))
    assert first == second
    assert first.texts == [row["text"] for row in rows]
    assert first.standard_library == 40
    assert first.codes == ["record_malformed", "index_damaged", "stopped", "sequence_too_long"]
    # Rank 0 alone did the work, and said more than once that it lives.
    assert first.heartbeats > 3
