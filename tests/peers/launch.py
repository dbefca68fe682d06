"""Starts scripts of this folder and of examples/peers in several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers import ROOT

_FINISHED = str(Path(__file__).with_name("finished.py"))
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    _FINISHED,
]


def output(*command: str) -> str:
    """Run a command on one thread without a hub, and return its output."""
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def findings(script: str, folder: Path) -> list[dict[str, Any]]:
    """Run a script of this folder in two processes, and return the findings that each wrote."""
    output(*TORCHRUN, str(Path(__file__).with_name(script)), str(folder))
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
