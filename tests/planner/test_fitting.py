"""Which profiles serve a run, by the split of layers; models and types are tested with the command."""

import json
from pathlib import Path

import pytest

from hydraulis import CostProfile, InvalidInputError
from hydraulis.config.run import RunConfig, load
from hydraulis.planner.fitting import check_profile
from profiles import made_up_profile

CONFIG = """
[model]
vocab_size = 256
hidden_size = 128
intermediate_size = 256
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
[data]
tokens_per_batch = 120
[train]
steps = 1
[planner]
strategies = ["1x<pp2>"]
memory_mib = 6
[output]
directory = "run"
"""


def config_with(folder: Path, stage_layers: str) -> RunConfig:
    (folder / "run.toml").write_text(CONFIG)
    return load(folder / "run.toml", [f"train.stage_layers={stage_layers}"])


def profile_under(stage_layers: list[int] | None) -> CostProfile:
    document = json.loads(made_up_profile({"<1>": 64, "<pp2>": 64, "<pp8>": 64}).to_json())
    document["schemes"][1] |= {"stage_layers": stage_layers} if stage_layers else {}
    return CostProfile.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("measured", "stated"),
    # By cost there are two layers on each stage; three stages are no matter of this profile.
    [(None, "[]"), ([2, 2], "[]"), (None, "[[2, 2]]"), ([3, 1], "[[3, 1]]"), (None, "[[1, 1, 2]]")],
)
def test_a_profile_serves_under_the_split_it_was_measured_with(
    tmp_path: Path, measured: list[int] | None, stated: str
) -> None:
    check_profile(config_with(tmp_path, stated), profile_under(measured))


@pytest.mark.parametrize(
    ("measured", "stated", "says"),
    [
        (None, "[[3, 1]]", r"stage_layers of <pp2> \[2, 2\], and the run has \[3, 1\]"),
        ([3, 1], "[]", r"stage_layers of <pp2> \[3, 1\], and the run has \[2, 2\]"),
        ([3, 1], "[[1, 3]]", r"stage_layers of <pp2> \[3, 1\], and the run has \[1, 3\]"),
    ],
)
def test_that_of_another_split_is_refused(
    tmp_path: Path, measured: list[int] | None, stated: str, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        check_profile(config_with(tmp_path, stated), profile_under(measured))
    assert caught.value.code == "profile_differs"
