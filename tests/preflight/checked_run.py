"""A run to check: its files, its configuration, and its findings."""

from pathlib import Path

from helpers import at_least
from hydraulis import Cluster
from hydraulis.config.run import RunConfig, load
from hydraulis.preflight.finding import Finding
from hydraulis.preflight.run import preflight
from profiles import made_up_profile
from test_end_to_end import make_model, write_documents

CONFIG = """
[model]
path = "{folder}/base"
[data]
sources = [{{files = ["{folder}/documents.jsonl"]}}]
max_tokens = 64
tokens_per_batch = 160
index_directory = "{folder}/index"
index_processes = 1
[train]
epochs = 2
[planner]
strategies = ["2x<tp2>", "1x<tp2>+2x<1>", "2x<pp2>"]
memory_mib = 6
profile = "{folder}/profile.json"
[output]
directory = "{folder}/runs/one"
"""


CAPS = {"<1>": 64, "<tp2>": 96, "<pp2>": 64, "<cp4>": 64}


def read(folder: Path, *overrides: str) -> RunConfig:
    return load(folder / "run.toml", overrides)


def findings(config: RunConfig, gpus: int = 4) -> dict[str, Finding]:
    found = list(preflight(config, Cluster(gpus, gpus)))
    at_least(10, found)
    return {one.name: one for one in found}


def write_checked_run(path: Path) -> None:
    """Write a model, documents, a profile and the configuration of a run."""
    make_model(path / "base")
    write_documents(path / "documents.jsonl")
    (path / "profile.json").write_text(made_up_profile(CAPS).to_json())
    (path / "run.toml").write_text(CONFIG.format(folder=path))
