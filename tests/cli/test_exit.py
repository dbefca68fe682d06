"""How a rank's process ends."""

import subprocess
import sys

ENDING = """
import atexit, sys, threading, time
from hydraulis.cli.exit import leave
class Left:
    def __del__(self):
        print("taken apart", flush=True)
left = Left()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.stdout.write("main, ")
leave({code})
"""


def end(code: int) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-c", ENDING.format(code=code)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_all_is_done_and_written_and_nothing_is_taken_apart() -> None:
    ended = end(3)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "main, thread\nat exit\n", "")


def test_success_is_success() -> None:
    assert end(0).returncode == 0
