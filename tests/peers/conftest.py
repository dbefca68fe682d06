"""`make peers` runs this folder, in the environment that has the other frameworks."""

import importlib.util

if importlib.util.find_spec("accelerate") is None:
    collect_ignore_glob = ["test_*.py"]
