import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "rich", "pandas", "safetensors", "pyarrow", "tokenizers", "jinja2", "matplotlib"}


@pytest.mark.parametrize(
    "module",
    [
        "hydraulis",
        "hydraulis.errors",
        "hydraulis.config",
        "hydraulis.planner",
        "hydraulis.batching",
        "hydraulis.cli.main",
    ],
)
def test_a_start_imports_few_modules(module: str) -> None:
    """Only a fresh interpreter knows what an import brings in."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    assert loaded & HEAVY == set()


def test_a_run_is_trained_without_rich_and_without_the_commands() -> None:
    """Only a fresh interpreter knows what an import needs."""
    code = (
        "import sys; sys.modules['rich'] = sys.modules['hydraulis.cli'] = None; "
        "from hydraulis.train.run import train; from hydraulis.train.observer import TrainingObserver"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
