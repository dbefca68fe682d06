"""The file of a run, as short as it may be."""

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from hydraulis.config.run import RunConfig

MINIMAL = """\
[model]
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2

[data]
tokens_per_batch = 16384

[train]
steps = 10

[planner]
strategies = ["1x<tp2>+2x<tp1>", "4x<tp1>"]
memory_mib = 512

[output]
directory = "runs/test"
"""


def field_names() -> list[str]:
    sections = get_type_hints(RunConfig)
    names = [f"{name}.{field.name}" for name, section in sections.items() for field in fields(section)]
    # The section lora sets it.
    names.remove("model.adapters")
    return names


def write(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path
