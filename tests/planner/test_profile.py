import json
import re
from pathlib import Path

import pytest

from helpers import ROOT, at_least
from hydraulis import Cluster, CostProfile, InvalidInputError, Scheme
from hydraulis._core import Efficiency
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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("llama-7b-a80", "; did you mean 'llama-7b-a800'?"),
        ("Llama-13B-A800", "; did you mean 'llama-13b-a800'?"),
        ("llama-7b-a100-40g.json", "; did you mean 'llama-7b-a100-40g'?"),
        ("big", "JSON file"),
        ("profile.json", "permissions"),
        ("runs/llama-7b-a800-mine/profile.json", "permissions"),
    ],
)
def test_of_what_is_neither_preset_nor_file_the_nearest_preset_is_named(name: str, meant: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load_profile(name)
    assert str(refusal.value).endswith(meant)


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


def test_an_analytic_profile_is_made_of_a_model_and_a_device(tmp_path: Path) -> None:
    by_preset = load_profile("analytic:llama-7b-a800:H100")
    assert (by_preset.device, by_preset.gpus_per_node, by_preset.dtype) == ("H100-80GB", 8, "bfloat16")
    config = {
        "model_type": "llama",
        "vocab_size": 30592,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    }
    path = tmp_path / "my-7b" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config), encoding="utf-8")
    by_config = load_profile(f"analytic:{path}:h100")
    # They are called after what they are of, and are the same otherwise.
    assert (by_preset.name, by_config.name) == (
        "analytic-llama-7b-a800-H100-80GB",
        "analytic-my-7b-H100-80GB",
    )
    renamed = json.loads(by_config.to_json()) | {"name": by_preset.name}
    assert CostProfile.from_json(json.dumps(renamed)) == by_preset
    assert load_profile(f"analytic:{path.parent}:h100") == by_config
    named = path.rename(tmp_path / "mine.json")
    assert load_profile(f"analytic:{named}:H100").name == "analytic-mine-H100-80GB"
    assert load_profile("analytic:llama-7b-a800:cpu").dtype == "float32"
    kinds = load_profile("analytic:llama-7b-a800:H100,none,full").schemes
    assert kinds == by_preset.schemes + [str(Scheme(text).under("full")) for text in by_preset.schemes]


def test_an_analytic_profile_knows_no_window(tmp_path: Path) -> None:
    shape = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 8}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mistral", **shape, **layers}), encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"sliding_window = 4096 .* write null there") as refusal:
        load_profile(f"analytic:{path}:H100")
    assert refusal.value.code == "model_unsupported"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("analytic:", "analytic_syntax"),
        ("analytic:H100", "analytic_syntax"),
        ("analytic::H100", "analytic_syntax"),
        ("analytic:llama-7b-a800:", "analytic_syntax"),
        ("analytic:llama-7b-a800:H100,", "analytic_syntax"),
        ("analytic:llama-7b-a800:H100,full,full", "analytic_syntax"),
        ("analytic:llama-7b-a800:V100", "device_unknown"),
        ("analytic:llama-7b-a800:H100,some", "config_value"),
        ("analytic:missing.json:H100", "config_file"),
    ],
)
def test_what_names_no_model_or_device_is_refused(name: str, code: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load_profile(name)
    assert refusal.value.code == code


def test_efficiencies_are_learnt_from_the_profiles_given() -> None:
    profiles = [CostProfile.preset(name) for name in PRESETS]
    model = profiles[0].model
    assert model is not None
    assert model.parameters == 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 30592 * 4096 + 4096
    default = CostProfile.analytic(model, Cluster(64, 8), "H100")
    learnt = Efficiency.learnt(profiles)
    assert learnt == Efficiency.shipped()
    assert CostProfile.analytic(model, Cluster(64, 8), "H100", efficiency=learnt) == default
    other = CostProfile.analytic(model, Cluster(64, 8), "H100", efficiency=Efficiency.learnt(profiles[1:]))
    assert other != default
    assert other.micro_batch_ms(Scheme("<tp2>"), [900]) == pytest.approx(
        default.micro_batch_ms(Scheme("<tp2>"), [900]), rel=0.2
    )
    assert other.error(Scheme("<tp2>")) is None


def test_the_share_of_the_peak_is_operations_over_what_the_profile_predicts() -> None:
    model, cluster, efficiency = (
        CostProfile.preset("llama-7b-a800").model,
        Cluster(64, 8),
        Efficiency.shipped(),
    )
    assert model is not None
    profile = CostProfile.analytic(model, cluster, "A800")
    for text, ranks in (("<1>", 1), ("<tp4,pp2>", 8), ("<tp2,cp2>", 4)):
        for lengths in ([300], [4_000, 900, 900]):
            tokens, squares = sum(lengths), sum(length**2 for length in lengths)
            matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 30592 * 4096
            operations = (6 * matrices * tokens + 7 * 32 * 4096 * squares) / ranks
            at_peak_ms = 1e3 * operations / 312e12
            share = efficiency.of_micro_batch(model, Scheme(text), cluster, "A800", lengths)
            assert share == pytest.approx(at_peak_ms / profile.micro_batch_ms(Scheme(text), lengths))
            assert 0 < share < efficiency.of_matrices(4096)
    # The wider, the nearer to the peak; attention by itself is as near at any length.
    widths = [efficiency.of_matrices(width) for width in (128, 1024, 4096, 1e12)]
    assert widths == sorted(widths)
    times = dict(efficiency.times_peak)
    assert widths[1] == pytest.approx(1 / (times["matrices"] + times["narrow matrices"]))
    assert widths[3] == pytest.approx(1 / times["matrices"], rel=1e-4)
    assert efficiency.of_attention == pytest.approx(1 / times["attention"])
    assert "H100-80GB" in CostProfile.devices()
    with pytest.raises(InvalidInputError, match="checkpointing is 'some'"):
        CostProfile.analytic(model, Cluster(64, 8), "H100", checkpointing=["some"])


def test_a_configuration_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[model]\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="no cost profile; hydraulis profile measures one") as refusal:
        load_profile(path)
    assert refusal.value.code == "profile_syntax"
