"""The end of a rank's process."""

import subprocess
import sys

ENDING = """
import atexit, sys, threading, time
from hydraulis.cli.exit import leave
class Left:
    def __del__(self):
        print("finalized", flush=True)
left = Left()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.stdout.write("main, ")
leave({code})
"""


def end(code: int) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-c", ENDING.format(code=code)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_pending_work_completes_without_finalizing_the_interpreter() -> None:
    ended = end(3)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "main, thread\nat exit\n", "")


def test_success_has_exit_code_0() -> None:
    assert end(0).returncode == 0
