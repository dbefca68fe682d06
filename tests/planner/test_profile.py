import json
import re
from pathlib import Path

import pytest

from helpers import ROOT, at_least, refused
from hydraulis import Cluster, CostProfile, InvalidInputError, Scheme
from hydraulis._core import Efficiency
from hydraulis.planner import load_profile
from hydraulis.planner.models import MODELS
from profiles import made_up_profile

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
    with refused("profile_unknown", "'llama-1t'", "llama-7b-a800"):
        load_profile("llama-1t")


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
def test_a_name_of_no_preset_and_no_file_gets_the_nearest_preset(name: str, meant: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load_profile(name)
    assert str(refusal.value).endswith(meant)


@pytest.mark.parametrize("name", ["missing.json", "folder/missing", ""])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with refused("file_unreadable", f"'{path}'"):
        load_profile(str(path))


def test_a_binary_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary.json"
    path.write_bytes(b"{\xff}")
    with refused("file_unreadable", "binary.json'", "byte 1", "UTF-8"):
        load_profile(path)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"fixed_ms": -1.0}, "profile_invalid", "schemes[0]"),
        ({"fixed_ms": "fast"}, "profile_invalid", "schemes[0].fixed_ms"),
        ({"margin": 1}, "profile_invalid", "`margin`"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(
    tmp_path: Path, change: dict[str, object], code: str, message: str
) -> None:
    document = json.loads(CostProfile.preset("llama-7b-a800").to_json())
    document["schemes"][0] |= change
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with refused(code, path, message):
        load_profile(path)


def test_a_missing_coefficient_is_named(tmp_path: Path) -> None:
    document = json.loads(CostProfile.preset("llama-7b-a800").to_json())
    del document["schemes"][2]["linear_ms_per_token"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with refused("profile_invalid", "schemes[2]", "`linear_ms_per_token`"):
        load_profile(path)


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
    # The profiles differ only in their names.
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
    assert kinds == by_preset.schemes + [
        str(Scheme(text).with_checkpointing("full")) for text in by_preset.schemes
    ]


# Parameters by the model cards, in billions: those of all tables, the embedding and the head.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("tinyllama-1.1b", 1.10),
        ("llama-3-8b", 8.03),
        ("llama-3-70b", 70.55),
        ("qwen3-8b", 8.19),
        ("qwen3-32b", 32.76),
    ],
)
@pytest.mark.parametrize("device", ["H100", "H200"])
def test_a_published_model_is_predicted_by_its_name(name: str, billions: float, device: str) -> None:
    predicted = load_profile(f"analytic:{name}:{device}")
    assert predicted.name.startswith(f"analytic-{name}-{device}")
    assert predicted.model is not None
    assert round(predicted.model.parameters / 1e9, 2) == billions
    assert any(Scheme(text).cp > 1 for text in predicted.schemes)


def test_every_published_model_is_tested() -> None:
    assert list(MODELS) == ["tinyllama-1.1b", "llama-3-8b", "llama-3-70b", "qwen3-8b", "qwen3-32b"]


def test_context_degrees_are_derived_on_request(tmp_path: Path) -> None:
    table = CostProfile.preset("llama-32b-a800")
    derived = load_profile("llama-32b-a800,cp")
    assert derived == table.with_context_degrees()
    assert derived.name == "llama-32b-a800,cp"
    assert derived.schemes[: len(table.schemes)] == table.schemes
    added = derived.schemes[len(table.schemes) :]
    assert all(Scheme(text).cp > 1 for text in at_least(8, added))
    assert derived.context(Scheme("<tp8,cp2>")) == "ulysses"
    # A replica that is twice as wide holds about twice the tokens, in more than half of the time.
    cluster = Cluster(64, 8)
    caps = [derived.cap_tokens(Scheme(text), cluster) for text in ("<tp8>", "<tp8,cp2>")]
    assert caps[1] == pytest.approx(2 * caps[0], rel=0.02)
    times = [derived.micro_batch_ms(Scheme(text), [8_000]) for text in ("<tp8>", "<tp8,cp2>")]
    assert times[0] / 2 < times[1] < 0.75 * times[0]
    path = tmp_path / "mine.json"
    path.write_text(table.to_json(), encoding="utf-8")
    assert load_profile(f"{path},cp") == derived
    with refused("profile_unknown", "'llama-32b-a80'", "did you mean 'llama-32b-a800'?"):
        load_profile("llama-32b-a80,cp")
    with refused("profile_invalid", "does not name its model"):
        made_up_profile({"<1>": 64}).with_context_degrees()


def test_an_analytic_profile_ignores_the_sliding_window(tmp_path: Path) -> None:
    shape = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 8}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mistral", **shape, **layers}), encoding="utf-8")
    with refused("model_unsupported", "sliding_window = 4096", "write null"):
        load_profile(f"analytic:{path}:H100")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("analytic:", "profile_unknown"),
        ("analytic:H100", "profile_unknown"),
        ("analytic::H100", "profile_unknown"),
        ("analytic:llama-7b-a800:", "profile_unknown"),
        ("analytic:llama-7b-a800:H100,", "profile_unknown"),
        ("analytic:llama-7b-a800:H100,full,full", "profile_unknown"),
        ("analytic:llama-7b-a800:V100", "profile_unknown"),
        ("analytic:llama-7b-a800:H100,some", "argument_invalid"),
        ("analytic:missing.json:H100", "file_unreadable"),
        ("analytic:lama-3-8b:H100", "profile_unknown"),
    ],
)
def test_an_unknown_model_or_device_is_refused(name: str, code: str) -> None:
    with refused(code):
        load_profile(name)


def test_an_unknown_model_gets_the_nearest_one() -> None:
    with refused("profile_unknown", "model 'lama-3-8b'", "did you mean 'llama-3-8b'?"):
        load_profile("analytic:lama-3-8b:H100")


def test_efficiencies_are_fitted_to_the_given_profiles() -> None:
    profiles = [CostProfile.preset(name) for name in PRESETS]
    model = profiles[0].model
    assert model is not None
    assert model.parameters == 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 30592 * 4096 + 4096
    default = CostProfile.analytic(model, Cluster(64, 8), "A800")
    learnt = Efficiency.learnt(profiles)
    assert learnt == Efficiency.shipped("A100-80GB")
    assert learnt.least_ms_per_layer == 0
    assert CostProfile.analytic(model, Cluster(64, 8), "A800", efficiency=learnt) == default
    other = CostProfile.analytic(model, Cluster(64, 8), "A800", efficiency=Efficiency.learnt(profiles[1:]))
    assert other != default
    assert other.micro_batch_ms(Scheme("<tp2>"), [900]) == pytest.approx(
        default.micro_batch_ms(Scheme("<tp2>"), [900]), rel=0.2
    )
    assert other.error(Scheme("<tp2>")) is None


def test_devices_like_an_h100_have_its_efficiencies() -> None:
    on_h100 = Efficiency.shipped("H100")
    assert [on_h100 == Efficiency.shipped(name) for name in ("H200", "H800", "B200", "H20", "A100-40GB")] == [
        *(True, True, True),
        *(False, False),
    ]
    times, of_table = dict(on_h100.times_peak), dict(Efficiency.shipped("A800").times_peak)
    assert times["attention"] > 2 * of_table["attention"]
    # The host's launches are the least time of a micro-batch there, and a part of every one in the tables.
    assert times["launches"] == 0 < of_table["launches"]
    model = CostProfile.preset("llama-7b-a800").model
    assert model is not None
    profile = CostProfile.analytic(model, Cluster(64, 8), "H100", checkpointing=["none", "full"])
    least = {
        text: profile.micro_batch_ms(Scheme(text), [1]) for text in ("<1>", "<tp2>", "<pp4>", "<1,full>")
    }
    assert least["<1>"] == pytest.approx(32 * on_h100.least_ms_per_layer)
    assert least["<tp2>"] == least["<1>"]
    assert least["<pp4>"] == pytest.approx(least["<1>"] / 4)
    assert least["<1,full>"] > least["<1>"]
    # A profile with least times teaches them.
    taught = Efficiency.learnt([profile])
    assert taught.least_ms_per_layer == pytest.approx(on_h100.least_ms_per_layer)
    assert taught.of_attention == pytest.approx(on_h100.of_attention, rel=0.01)
    with refused("profile_unknown", "V100"):
        Efficiency.shipped("V100")


def test_the_share_of_the_peak_is_operations_per_predicted_time() -> None:
    model, cluster, efficiency = (
        CostProfile.preset("llama-7b-a800").model,
        Cluster(64, 8),
        Efficiency.shipped("A800"),
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
    with refused("argument_invalid", "checkpointing", "'some'"):
        CostProfile.analytic(model, Cluster(64, 8), "H100", checkpointing=["some"])


def test_a_configuration_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[model]\n", encoding="utf-8")
    with refused("profile_invalid", "hydraulis profile"):
        load_profile(path)
