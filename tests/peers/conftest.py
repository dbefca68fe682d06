"""`make peers` runs this folder, and `make peers-light` a part of it, in environments of other frameworks."""

import importlib.util

# The main environment has `accelerate`, `transformers` and `trl` too, and never `torchdata`.
if importlib.util.find_spec("torchdata") is None:
    collect_ignore_glob = ["test_*.py", "*_ranks.py"]
