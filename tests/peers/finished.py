"""Runs a script in one of several processes: `finished.py SCRIPT ARGUMENTS`.

Its process ends without the interpreter's shutdown, which gloo's threads can abort after all work is done
(`hydraulis.cli.exit.leave`).
"""

import runpy
import sys
from pathlib import Path

from hydraulis.cli.exit import leave

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    leave(0)
