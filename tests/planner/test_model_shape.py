import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import at_least, refused
from hydraulis import CostProfile, LayerSplit, ModelShape, Scheme
from hydraulis.config.lora import Adapters
from hydraulis.config.model import ModelConfig
from hydraulis.config.run import RunConfig, load
from hydraulis.planner.model_shape import build_layer_split, build_model_shape, check_profile
from profiles import made_up_profile
from small_model import FAMILIES, build_decoder, small_config


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_counted(family: str) -> None:
    config = small_config(**FAMILIES[family])
    elements = sum(parameter.numel() for parameter in build_decoder(config).parameters())
    assert build_model_shape(config).parameters == elements


@pytest.mark.parametrize("name", at_least(4, CostProfile.presets()))
def test_the_parameter_table_of_a_shipped_profile_follows_from_its_sizes(name: str) -> None:
    model = CostProfile.preset(name).model
    assert model is not None
    document = json.loads(model.to_json())
    sizes = {field: value for field, value in document.items() if field != "parameters"}
    assert build_model_shape(ModelConfig(**sizes)) == model


def test_facts_without_a_cost_do_not_change_the_shape() -> None:
    same = small_config(initializer_range=0.5, rope_theta=5e5, rms_norm_eps=1e-6)
    assert build_model_shape(same) == build_model_shape(small_config())
    assert build_model_shape(small_config()).difference(build_model_shape(same)) is None
    difference = build_model_shape(small_config()).difference(build_model_shape(small_config(qk_norm=True)))
    assert difference is not None
    assert (difference[0], "q_norm" in difference[2]) == ("parameters", True)


def test_an_invalid_shape_is_refused_by_field() -> None:
    document = json.loads(build_model_shape(small_config()).to_json())
    with refused("model_invalid", "num_key_value_heads is 3"):
        ModelShape.from_json(json.dumps(document | {"num_key_value_heads": 3}))
    with refused("profile_invalid", "model.hidden_size"):
        ModelShape.from_json(json.dumps(document | {"hidden_size": "wide"}))


def test_stages_get_layers_by_cost_or_as_stated() -> None:
    config = small_config(num_hidden_layers=7, vocab_size=256)
    by_cost, stated = build_layer_split(config), build_layer_split(config, [[1, 5, 1], [6, 1]])
    # The head costs 256 x 24 of 6,480 parameters, nearly a layer.
    assert by_cost.stage_layers(Scheme("<pp2>")) == [4, 3]
    assert stated.stage_layers(Scheme("<tp2,pp2>")) == [6, 1]
    assert stated.stage_layers(Scheme("<pp3>")) == [1, 5, 1]
    assert stated.stage_layers(Scheme("<pp4>")) == by_cost.stage_layers(Scheme("<pp4>"))
    assert stated.stated == [[6, 1], [1, 5, 1]]
    assert by_cost.stated == []
    assert stated != by_cost
    assert stated == build_layer_split(config, [[6, 1], [1, 5, 1]])
    with refused("scheme_model_mismatch", "8 layers"):
        LayerSplit(7, stated=[[4, 4]])
    with refused("scheme_model_mismatch"):
        LayerSplit(4).stage_layers(Scheme("<pp8>"))


def test_adapters_are_rows_of_the_shape_and_the_base_is_frozen(tmp_path: Path) -> None:
    adapters = Adapters(rank=2, alpha=4.0, targets=("q_proj",))
    full, lora = (build_model_shape(small_config(adapters=one)) for one in (None, adapters))
    config = small_config()
    width = config.hidden_size + config.num_attention_heads * config.head_dim
    assert lora.parameters - full.parameters == config.num_hidden_layers * 2 * width
    assert full.difference(lora) == (
        "parameters",
        "embed_tokens.weight [37, 24]",
        "embed_tokens.weight [37, 24], frozen",
    )
    wider = build_model_shape(small_config(adapters=replace(adapters, rank=3)))
    difference = lora.difference(wider)
    assert difference is not None
    assert difference[1] == "layers.*.self_attn.q_proj.lora_A.weight [2, 24]"
    # The scaling changes no cost.
    assert build_model_shape(small_config(adapters=replace(adapters, alpha=1.0))) == lora
    # A profile of full training is refused.
    document = json.loads(made_up_profile({"<1>": 64, "<pp2>": 64}).to_json())
    config_of_run = config_with(tmp_path, "[]")
    document["model"] = json.loads(build_model_shape(config_of_run.model).to_json())
    profile = CostProfile.from_json(json.dumps(document))
    check_profile(config_of_run, "planner.profile", profile)
    with refused("profile_mismatch", "embed_tokens.weight [256, 128]", "frozen"):
        check_profile(
            load(tmp_path / "run.toml", ["lora.rank=2", "lora.alpha=4"]), "planner.profile", profile
        )


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
    check_profile(config_with(tmp_path, stated), "planner.profile", profile_under(measured))


@pytest.mark.parametrize(
    ("measured", "stated", "says"),
    [
        (None, "[[3, 1]]", "stage_layers of <pp2> [2, 2], and the run has [3, 1]"),
        ([3, 1], "[]", "stage_layers of <pp2> [3, 1], and the run has [2, 2]"),
        ([3, 1], "[[1, 3]]", "stage_layers of <pp2> [3, 1], and the run has [1, 3]"),
    ],
)
def test_a_profile_of_another_split_is_refused(
    tmp_path: Path, measured: list[int] | None, stated: str, says: str
) -> None:
    with refused("profile_mismatch", says):
        check_profile(config_with(tmp_path, stated), "planner.profile", profile_under(measured))


def test_a_profile_of_other_gradients_is_refused(tmp_path: Path) -> None:
    config_with(tmp_path, "[]")
    document = json.loads(profile_under(None).to_json())
    document["schemes"] = [one for one in document["schemes"] if "pp" not in one["scheme"]]
    profile, sharded = (
        CostProfile.from_json(json.dumps(document | {"sharding": kind})) for kind in ("none", "gradients")
    )
    assert (profile.sharding, sharded.sharding) == ("none", "gradients")
    for here, right, wrong in (("none", profile, sharded), ("gradients", sharded, profile)):
        config = load(tmp_path / "run.toml", [f"train.sharding={here}"])
        check_profile(config, "planner.profile", right)
        with refused("profile_mismatch", f"sharding {wrong.sharding}", f"the run has {here}"):
            check_profile(config, "planner.profile", wrong)


@pytest.mark.parametrize(
    ("name", "setting"),
    [("compiled", "compile"), ("float8", "float8"), ("symmetric_memory", "symmetric_memory")],
)
def test_a_profile_of_other_kernels_is_refused(tmp_path: Path, name: str, setting: str) -> None:
    config_with(tmp_path, "[]")
    document = json.loads(profile_under(None).to_json())
    for here in (False, True):
        overrides = ["train.dtype=bfloat16", f"train.{setting}={str(here).lower()}"]
        config = load(tmp_path / "run.toml", overrides)
        for there in (None, here, not here):
            stated = {} if there is None else {name: there}
            profile = CostProfile.from_json(json.dumps(document | {"dtype": "bfloat16"} | stated))
            assert getattr(profile, name) is there
            if there is not here and there is not None:
                with refused("profile_mismatch", f"{setting} {str(there).lower()}"):
                    check_profile(config, "planner.profile", profile)
            else:
                check_profile(config, "planner.profile", profile)
