import json
import re
from pathlib import Path

import pytest

from helpers import ROOT, at_least
from hydraulis import CostProfile, InvalidInputError
from hydraulis.planner import load_profile

PRESETS = ["llama-7b-a800", "llama-13b-a800", "llama-32b-a800", "llama-7b-a100-40g"]


def test_the_presets_are_read_by_name() -> None:
    assert CostProfile.presets() == PRESETS
    assert [load_profile(name).name for name in PRESETS] == PRESETS


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_read_by_its_path(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "mine.json"
    path.write_text(CostProfile.preset("llama-7b-a800").to_json(), encoding="utf-8")
    assert load_profile(kind(path)) == CostProfile.preset("llama-7b-a800")


def test_a_preset_wins_over_a_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama-7b-a800").write_text(CostProfile.preset("llama-13b-a800").to_json(), encoding="utf-8")
    assert load_profile("llama-7b-a800").name == "llama-7b-a800"
    assert load_profile("./llama-7b-a800").name == "llama-13b-a800"
    assert load_profile(Path("llama-7b-a800")).name == "llama-13b-a800"


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(InvalidInputError, match=r"'llama-1t': use one of llama-7b-a800 .* path") as refusal:
        load_profile("llama-1t")
    assert refusal.value.code == "preset_unknown"


@pytest.mark.parametrize("name", ["missing.json", "folder/missing", ""])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InvalidInputError, match="check the path") as refusal:
        load_profile(str(path))
    assert refusal.value.code == "file_unreadable"
    assert f"'{path}'" in str(refusal.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary.json"
    path.write_bytes(b"{\xff}")
    with pytest.raises(InvalidInputError, match=r"binary\.json' .* byte 1 is not UTF-8") as refusal:
        load_profile(path)
    assert refusal.value.code == "file_unreadable"


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"fixed_ms": -1.0}, "profile_value", r"mine\.json'.*schemes\[0\] .* fixed_ms is -1"),
        ({"fixed_ms": "fast"}, "profile_syntax", r"mine\.json'.*schemes\[0\]\.fixed_ms"),
        ({"margin": 1}, "profile_syntax", r"mine\.json'.*unknown field `margin`"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(
    tmp_path: Path, change: dict[str, object], code: str, message: str
) -> None:
    document = json.loads(CostProfile.preset("llama-7b-a800").to_json())
    document["schemes"][0] |= change
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=message) as refusal:
        load_profile(path)
    assert refusal.value.code == code


def test_a_missing_coefficient_is_named(tmp_path: Path) -> None:
    document = json.loads(CostProfile.preset("llama-7b-a800").to_json())
    del document["schemes"][2]["linear_ms_per_token"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"schemes\[2\].*`linear_ms_per_token`") as refusal:
        load_profile(path)
    assert refusal.value.code == "profile_syntax"


def test_the_documented_example_is_a_profile() -> None:
    text = (ROOT / "docs/cost-profile.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    profile = CostProfile.from_json(example)
    assert json.loads(profile.to_json()) == json.loads(example)
    for field in at_least(
        20, re.findall(r"^\| `([a-z0-9_]+(?:\[\])?(?:\.[a-z0-9_]+)?)` \|", text, re.MULTILINE)
    ):
        assert f'"{field.split(".")[-1]}"' in example
