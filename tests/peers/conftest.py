"""`make peers` runs this folder, in the environment that has the other frameworks."""

import importlib.util

# `accelerate` comes with peft: it does not tell the environments apart.
if importlib.util.find_spec("lightning") is None:
    collect_ignore_glob = ["test_*.py"]
