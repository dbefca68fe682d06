"""Start of the processes: interrupts while loading, and standard streams with limits."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helpers import ROOT
from hydraulis.cli.exit import EXIT_INTERRUPTED, EXIT_REFUSED

DEMO = ROOT / "examples" / "demo.toml"
# The first import after the entry module is interrupted.
INTERRUPT = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name in ("hydraulis.cli.main", "hydraulis.cli.commands.train"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize(
    ("module", "said"), [("hydraulis", "hydraulis: interrupted\n"), ("hydraulis.train", "")]
)
def test_an_interrupt_while_loading_ends_like_a_later_one(tmp_path: Path, module: str, said: str) -> None:
    code = f"{INTERRUPT}import runpy; runpy.run_module({module!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, said)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", [f"hydraulis config {DEMO}", "hydraulis.train --help"])
def test_missing_standard_streams_change_nothing(words: str, closed: str) -> None:
    command = f"exec {sys.executable} -m {words} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_output_escapes_what_its_encoding_lacks() -> None:
    words = ["config", str(DEMO), "--set", "output.directory=runs/\u65e5\u672c"]
    done = subprocess.run(
        [sys.executable, "-m", "hydraulis", *words],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"runs/\\u65e5\\u672c" in done.stdout
    assert tomllib.loads(done.stdout.decode())["output"]["directory"] == "runs/\u65e5\u672c"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_bytes_that_are_no_utf8_are_refused_under_any_encoding(encoding: str) -> None:
    words = ["plan", "--gpus", "8", "--profile", "llama-7b-a800", "--strategies", "a\udcff"]
    lengths = ["--lengths", str(DEMO), "--tokens-per-batch", "1000"]
    done = subprocess.run(
        [sys.executable, "-m", "hydraulis", *words, *lengths],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (EXIT_REFUSED, b"")
    assert done.stderr.startswith(b"hydraulis: error [option_invalid]: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("json_option", ["", "--json"])
def test_a_refusal_without_room_for_its_line_keeps_its_exit_code(json_option: str) -> None:
    words = f"plan --gpus 2 --profile none --lengths none --tokens-per-batch 9 {json_option}"
    command = f"exec {sys.executable} -m hydraulis {words} 2>/dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=120)
    assert done.returncode == EXIT_REFUSED
    if json_option:
        assert json.loads(done.stdout)["error"]["code"]
    else:
        assert done.stdout == b""
