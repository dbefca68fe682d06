import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "rich", "pandas", "safetensors", "pyarrow", "tokenizers", "jinja2", "matplotlib"}


@pytest.mark.parametrize(
    "module", ["hydraulis", "hydraulis.errors", "hydraulis.config", "hydraulis.planner", "hydraulis.cli.main"]
)
def test_starting_is_light(module: str) -> None:
    """Only a fresh interpreter knows what an import brings in."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    assert loaded & HEAVY == set()
