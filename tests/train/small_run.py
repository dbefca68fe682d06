"""A run of a few steps: its configuration and its files."""

import json
from pathlib import Path
from typing import Any

from profiles import made_up_profile

STEPS = 4
CONFIG = """
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
initializer_range = 0.1

[data]
max_tokens = 400
tokens_per_batch = 1024

[train]
steps = {steps}
trace_step = 2
timeout_s = 60

[optimizer]
learning_rate = 1e-2

[planner]
memory_mib = 6
strategies = ["2x<1>", "1x<tp2>", "1x<cp2>"]
context = "ring"
profile_seconds = 1.0

[output]
directory = "{directory}"
"""


def write_config(folder: Path) -> Path:
    path = folder / "run.toml"
    path.write_text(CONFIG.format(steps=STEPS, directory=folder / "run"))
    return path


def write_quick_config(folder: Path) -> Path:
    """Write the configuration of a run that starts soon: its documents and its profile are there."""
    path = write_config(folder)
    documents = ("ab " * (3 + 130 * index * index // 4096) for index in range(64))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    caps = {"<1>": 512, "<tp2>": 1024, "<cp2>": 1024}
    (folder / "profile.json").write_text(made_up_profile(caps, context="ring").to_json())
    data = (
        f'sources = [{{files = ["{folder}/text.jsonl"]}}]',
        f'index_directory = "{folder}/index"',
        "index_processes = 1",
    )
    text = path.read_text().replace("[data]\n", "\n".join(("[data]", *data, "")))
    path.write_text(text.replace("profile_seconds = 1.0", f'profile = "{folder}/profile.json"'))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]
