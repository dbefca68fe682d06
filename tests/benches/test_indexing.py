"""The bench of indexing in its short form: what is killed is built by a second start, in bounded memory."""

import re
import subprocess
import sys

from helpers import ROOT

DOCUMENTS = 300_000
# 39 and 39 were measured, with a tenth and three times as many documents too; the text alone is 78 MB.
MOST_MB = 70


def test_an_index_is_built_in_bounded_memory() -> None:
    command = [sys.executable, str(ROOT / "benches/indexing.py"), "--documents", str(DOCUMENTS)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{DOCUMENTS:,} documents")
    found = re.search(r"; ([0-9]+) MB, and ([0-9]+) MB in a process", said)
    assert found is not None, said
    own_mb, worker_mb = map(float, found.groups())
    assert 0 < own_mb < MOST_MB
    assert 0 < worker_mb < MOST_MB
