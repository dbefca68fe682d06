import json
import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from hydraulis import Cluster
from hydraulis.config.hugging_face import from_hugging_face
from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.preset import PRESETS
from hydraulis.config.rope import RopeScaling
from hydraulis.config.run import RunConfig, load, load_with_origins, to_dict
from hydraulis.config.table import from_table
from hydraulis.config.train import TrainConfig
from hydraulis.errors import InvalidInputError
from hydraulis.runtime.run_schemes import named_strategies

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

# For every field a value of the right type that no run can use; the model's are tested with the model.
BAD_VALUES = {
    "data.source": '"web"',
    "data.max_tokens": "1",
    "data.sources": '[{files=["x"], weight=0}]',
    "data.tokenizer": '""',
    "data.too_long": '"drop"',
    "data.tokens_per_batch": "0",
    "data.sequences_per_batch": "0",
    "data.epoch_end": '"stop"',
    "data.held_out": "1.0",
    "data.held_out_seed": "-1",
    "data.index_directory": '""',
    "data.index_processes": "-1",
    "train.steps": "0",
    "train.epochs": "0",
    "train.seed": "-1",
    "train.device": '"tpu"',
    "train.attention": '"slow"',
    "train.dtype": '"float16"',
    "train.frozen": '[" "]',
    "train.evaluate_every": "0",
    "train.timeout_s": "0",
    "train.trace_step": "0",
    "optimizer.learning_rate": "0.0",
    "optimizer.warmup_steps": "-1",
    "optimizer.schedule": '"step"',
    "optimizer.decay_steps": "-1",
    "optimizer.min_learning_rate": "-0.1",
    "optimizer.no_decay": '[""]',
    "optimizer.clip_norm": "-1",
    "optimizer.betas": "[0.9, 1.0]",
    "optimizer.eps": "0.0",
    "optimizer.weight_decay": "-0.1",
    "checkpoint.every_steps": "0",
    "checkpoint.keep": "-1",
    "planner.strategies": "[]",
    "planner.schemes": '[""]',
    "planner.checkpointing": '["some"]',
    "planner.max_strategies": "0",
    "planner.link": '"fast"',
    "planner.recalibrate": "1.0",
    "planner.context": '"both"',
    "planner.profile_seconds": "0",
    "planner.memory_mib": "0",
    "planner.memory": '"all"',
    "output.directory": '""',
    "output.peak_tflops": "0",
}
# Any string may be a path, both truth values are good; what is wrong with it shows when it is opened.
WITHOUT_BAD_VALUE = {
    "planner.profile",
    "output.wandb_project",
    "checkpoint.resume",
    "checkpoint.weights",
    "data.chat_template",
    "data.eos_token",
    "output.tensorboard",
    "train.deterministic",
    # The core refuses it, by its own name and with its own code; there is a test of that below.
    "train.stage_layers",
}


def field_names() -> list[str]:
    sections = get_type_hints(RunConfig)
    return [f"{name}.{field.name}" for name, section in sections.items() for field in fields(section)]


def write(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_a_file_and_fills_in_defaults(tmp_path: Path) -> None:
    config = load(write(tmp_path), [])
    assert config.model.num_hidden_layers == 2
    assert config.data.source == "stdlib"
    assert config.data.max_tokens == 8192
    assert config.train == TrainConfig(steps=10, seed=0, dtype="float32", timeout_s=600.0, trace_step=None)
    assert config.optimizer == OptimizerConfig()
    assert config.planner.strategies == ("1x<tp2>+2x<tp1>", "4x<tp1>")
    assert config.planner.profile == ""
    assert config.planner.profile_seconds == 20.0
    assert config.output.directory == "runs/test"


def test_the_lists_of_this_file_name_every_field() -> None:
    names = [name for name in field_names() if not name.startswith("model.")]
    assert len(names) >= 18
    assert set(names) == BAD_VALUES.keys() | WITHOUT_BAD_VALUE
    assert any(name.startswith("model.") for name in field_names())


@pytest.mark.parametrize("name", sorted(BAD_VALUES))
def test_refuses_a_bad_value_in_every_field(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load(write(tmp_path), [f"{name}={BAD_VALUES[name]}"])
    assert refusal.value.code == "config_value"
    assert str(refusal.value).startswith(name)


@pytest.mark.parametrize("name", field_names())
def test_refuses_another_type_in_every_field(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load(write(tmp_path), [f"{name}=3" if name == "data.sources" else f"{name}=[{{}}]"])
    # The choices of a field say its type as well.
    assert refusal.value.code == ("config_value" if "must be one of" in str(refusal.value) else "config_type")
    assert str(refusal.value).startswith(name)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", ["train.timeout_s", "optimizer.learning_rate", "optimizer.weight_decay"])
def test_refuses_numbers_that_are_not_finite(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{name} = {value} must be a finite number"):
        load(write(tmp_path), [f"{name}={value}"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.betas=[-0.1, 0.9]", r"optimizer.betas\[0\] = -0.1"),
        ("data.held_out=1.5", "data.held_out = 1.5 must be a number of at least 0 and below 1"),
        ("train.steps=-3", "train.steps = -3 must be a whole number of at least 1;"),
        (
            'data.sources=[{files=["a"], weight=1}, {files=["b"], weight=-0.2}]',
            r"data.sources\[1\].weight = -0.2 must be a finite number above 0",
        ),
        ("optimizer.betas=[nan, 0.9]", r"optimizer.betas\[0\] = nan"),
        ("train.evaluate_every=5", "data.held_out = 0.0 must be a finite number above 0"),
        ("optimizer.min_learning_rate=1.0", "optimizer.min_learning_rate = 1.0 must be at most"),
        ('optimizer.schedule="wsd"', "optimizer.decay_steps = 0 and optimizer.schedule = 'wsd'"),
        ("optimizer.decay_steps=5", "optimizer.decay_steps = 5 and optimizer.schedule = 'constant'"),
        ('planner.strategies=["a", " "]', r"planner.strategies\[1\] = ' '"),
        ('planner.schemes=["<1>"]', r"planner.schemes = \['<1>'\] says what a search may use"),
        ('planner.checkpointing=["full"]', r"planner.strategies names schemes, each with its own kind"),
        ('data.sources=[{files=[""]}]', r"data.sources\[0\].files\[0\] = ''"),
        (
            'data.sources=[{files=["a"], fields=["b", "c"]}]',
            r"data.sources\[0\].fields = \['b', 'c'\] must be 1 to 1",
        ),
        ('data.sources=[{files=["a"], weight=1}, {files=["b"]}]', r"data.sources\[1\].weight is absent"),
        (
            "model.sliding_window=4095\0data.max_tokens=4096",
            "data.max_tokens = 4096 must be a whole number of at most 4095, which is model.sliding_window",
        ),
        ("model.vocab_size=255", "model.vocab_size = 255 must be a whole number of at least 256"),
    ],
)
def test_refuses_values_that_do_not_go_together(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refusal:
        load(write(tmp_path), override.split("\0"))
    assert refusal.value.code == "config_value"


def test_either_tokens_or_sequences_fill_a_batch(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL.replace("tokens_per_batch = 16384", ""))
    with pytest.raises(
        InvalidInputError, match=r"data\.sequences_per_batch are both absent: .*; set one"
    ) as refusal:
        load(path)
    assert refusal.value.code == "config_value"
    assert load(write(tmp_path)).data.batch_tokens == 16384
    both = write(tmp_path, MINIMAL.replace("[train]", "sequences_per_batch = 3\n[train]"))
    with pytest.raises(
        InvalidInputError, match="are 16384 and 3: exactly one of them says when a batch is full"
    ):
        load(both)


def test_steps_or_epochs_say_how_long_a_run_is(tmp_path: Path) -> None:
    assert load(write(tmp_path), ["train.epochs=2"]).train.num_steps == 10
    neither = write(tmp_path, MINIMAL.replace("steps = 10", ""))
    with pytest.raises(InvalidInputError, match=r"train\.steps and train\.epochs are absent") as refusal:
        load(neither)
    assert refusal.value.code == "config_value"
    assert load(neither, ["train.epochs=2"]).train.epochs == 2


def test_sources_are_tables_with_the_fields_of_their_format(tmp_path: Path) -> None:
    sources = '[[data.sources]]\nfiles = ["a.jsonl", "b/*.parquet"]\nformat = "completion"\nweight = 2\n'
    config = load(write(tmp_path, MINIMAL + sources))
    (source,) = config.data.sources
    assert source.files == ("a.jsonl", "b/*.parquet")
    assert source.fields == ("prompt", "completion")
    assert source.weight == 2.0
    assert from_table(RunConfig, json.loads(json.dumps(to_dict(config))), "") == config
    # What the bytes need, a tokenizer may not.
    assert load(write(tmp_path, MINIMAL + sources), ["model.vocab_size=60"]).model.vocab_size == 60


def test_an_empty_list_of_sources_is_refused_unless_the_standard_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"data\.sources = \[\] names no files") as refusal:
        load(write(tmp_path), ["data.sources=[]"])
    assert refusal.value.code == "config_value"
    assert load(write(tmp_path), ["data.sources=[]", "data.source=stdlib"]).data.sources == ()


def test_the_model_checks_itself(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="num_key_value_heads = 3") as refusal:
        load(write(tmp_path), ["model.num_key_value_heads=3"])
    assert refusal.value.code == "model_config"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.stepz=1", r"'stepz' in section \[train\] is unknown.* did you mean 'steps'"),
        ("trian.steps=1", "'trian' in the run configuration is unknown.* did you mean 'train'"),
        ("model.hidden=1", r"'hidden' in section \[model\] is unknown.* did you mean 'hidden_size'"),
        ("data.sourcs=x", r"'sourcs' in section \[data\] is unknown.* did you mean 'sources'"),
        ("dat.sources=x", "'dat' in the run configuration is unknown.* did you mean 'data'"),
        ("dat.sources=x", "the keys are preset, model, data, "),
        ("preset.x=1", "'preset' in the run configuration is unknown"),
        ("model.paht=base", r"the keys are path, hf_config, vocab_size, .* did you mean 'path'"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refusal:
        load(write(tmp_path), [override])
    assert refusal.value.code == "config_unknown_key"


@pytest.mark.parametrize(
    ("line", "section"),
    [
        ("vocab_size = 256", "model"),
        ("memory_mib = 512", "planner"),
        ('[output]\ndirectory = "runs/test"', "output"),
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, line: str, section: str) -> None:
    assert line in MINIMAL
    with pytest.raises(InvalidInputError, match=rf"in section \[{section}\] is missing") as refusal:
        load(write(tmp_path, MINIMAL.replace(line, "")), [])
    assert refusal.value.code == "config_missing_key"
    assert str(refusal.value).endswith("; set it, or model.path, or model.hf_config") == (section == "model")


def test_overrides_replace_and_add_keys(tmp_path: Path) -> None:
    overrides = [
        "train.steps=20",
        ' train.dtype = "float64" ',
        "optimizer.betas=[0.8, 0.9]",
        "train.steps=30",
    ]
    config = load(write(tmp_path), overrides)
    assert config.train == TrainConfig(steps=30, dtype="float64")
    assert config.optimizer.betas == (0.8, 0.9)


def test_an_override_may_hold_an_equals_sign(tmp_path: Path) -> None:
    assert load(write(tmp_path), ['output.directory="a=b.c"']).output.directory == "a=b.c"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps", "must be section.key=value"),
        ("steps=3", "must be section.key=value"),
        (".steps=3", "must be section.key=value"),
        ("train.=3", "must be section.key=value"),
        ("train.steps=", "must have a value as TOML has it"),
        ('output.directory="runs', "must have a value as TOML has it"),
        ("train.steps=3\nseed=4", "must hold one value"),
    ],
)
def test_refuses_what_is_no_override(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refusal:
        load(write(tmp_path), [override])
    assert refusal.value.code == "config_syntax"
    assert repr(override)[1:-1].split("\\n")[0] in str(refusal.value)


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("planner.memory_mib=abc", "an integer"),
        ("train.seed=1 2", "an integer"),
        ("train.deterministic=yes", "a boolean"),
        ("optimizer.learning_rate=1e-3x", "a float"),
        ("optimizer.betas=x", "an array"),
    ],
)
def test_a_word_in_place_of_another_type_is_refused_with_the_type(
    tmp_path: Path, override: str, wanted: str
) -> None:
    key, _, value = override.partition("=")
    with pytest.raises(InvalidInputError, match=f"^{key} = '{value}' is .* must be {wanted};") as refusal:
        load(write(tmp_path), [override])
    assert refusal.value.code == "config_type"


def test_a_section_that_is_no_table_is_refused_even_with_an_override(tmp_path: Path) -> None:
    text = "train = 3\n" + MINIMAL.replace("[train]\nsteps = 10\n", "")
    with pytest.raises(InvalidInputError, match=r"train = 3 .* must be a table") as refusal:
        load(write(tmp_path, text), ["train.steps=1"])
    assert refusal.value.code == "config_type"


def test_a_syntax_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nsteps = 10\nseed = = 3\n")
    with pytest.raises(InvalidInputError, match=r"run.toml.* line 3") as refusal:
        load(path, [])
    assert refusal.value.code == "config_syntax"
    assert str(path) in str(refusal.value)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"# \xff\n" + MINIMAL.encode())
    with pytest.raises(InvalidInputError, match="must be TOML in UTF-8") as refusal:
        load(path, [])
    assert refusal.value.code == "config_syntax"


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InvalidInputError, match="must be a file that can be read") as refusal:
        load(path, [])
    assert refusal.value.code == "config_file"
    assert str(path) in str(refusal.value)


def test_the_effective_configuration_comes_back_from_json(tmp_path: Path) -> None:
    config = load(write(tmp_path), [])
    dumped = json.loads(json.dumps(to_dict(config)))
    assert dumped["train"] == {
        "steps": 10,
        "epochs": None,
        "seed": 0,
        "device": "auto",
        "attention": "auto",
        "deterministic": False,
        "dtype": "float32",
        "stage_layers": [],
        "frozen": [],
        "evaluate_every": None,
        "timeout_s": 600.0,
        "trace_step": None,
    }
    assert from_table(RunConfig, dumped, "") == config


def test_stated_layers_of_stages_must_be_a_split_of_the_models(tmp_path: Path) -> None:
    config = load(write(tmp_path), ["train.stage_layers=[[1, 1]]"])
    assert config.train.stage_layers == ((1, 1),)
    for lists, says in (
        ("[[1, 1], [1, 1, 1]]", r"stage_layers\[1\] = \[1, 1, 1\]: these are 3 layers, the model has 2"),
        (
            "[[2]]",
            r"stage_layers\[0\] = \[2\]: one stage has all layers, whatever is stated; leave the list out",
        ),
        ("[[]]", r"stage_layers\[0\] = \[\]: the limit is one layer a stage"),
        ("[[1, 1], [1, 1]]", "one list for each number"),
        ("[[1, 1], [0, 2]]", r"stage_layers\[1\] = \[0, 2\]: the limit is one layer a stage"),
        ("[[-1, 3]]", r"stage_layers\[0\] = \[-1, 3\]: the limits are one layer a stage and 2 in all"),
        ("[[1, 18446744073709551617]]", "the limits are one layer a stage and 2 in all"),
    ):
        with pytest.raises(InvalidInputError, match=says) as refusal:
            load(write(tmp_path), [f"train.stage_layers={lists}"])
        assert refusal.value.code == "layer_split"
    with pytest.raises(InvalidInputError, match="num_hidden_layers is 1099511627776") as refusal:
        load(write(tmp_path), ["train.stage_layers=[[1, 1]]", f"model.num_hidden_layers={2**40}"])
    assert refusal.value.code == "model_shape"


def write_model(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    shape = {
        "model_type": "qwen3",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    }
    path.write_text(json.dumps(shape | changes), encoding="utf-8")
    return path


def test_a_model_may_be_that_of_a_config_json_and_keys_beside_it_count(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    file = write(tmp_path, re.sub(r"\[model\](\n.+)+", f"[model]\nhf_config = '{path}'", MINIMAL))
    assert load(file).model == from_hugging_face(path)
    scaling = 'model.rope_scaling={rope_type="linear", factor=3}'
    config = load(file, ["model.num_hidden_layers=1", scaling]).model
    assert (config.num_hidden_layers, config.qk_norm) == (1, True)
    assert config.rope_scaling == RopeScaling(rope_type="linear", factor=3.0)


def test_a_model_whose_config_json_is_not_a_path_or_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"model\.hf_config = 3 must be the path") as refusal:
        load(write(tmp_path, MINIMAL.replace("[model]", "[model]\nhf_config = 3")))
    assert refusal.value.code == "config_type"
    path = write_model(tmp_path, model_type="gemma")
    with pytest.raises(InvalidInputError) as refusal:
        load(write(tmp_path), [f"model.hf_config='{path}'"])
    assert refusal.value.code == "model_unsupported"


HF_CONFIG = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


WEIGHTS = """
[checkpoint]
weights = "before"
"""


def without_shape(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(HF_CONFIG))
    shape = re.compile(r"\[model\]\n(\w+ = \d+\n)+")
    return write(folder, shape.sub(f'[model]\npath = "{folder}"\n', MINIMAL))


def test_a_model_folder_gives_the_shape_and_where_the_parameters_are(tmp_path: Path) -> None:
    config = load(without_shape(tmp_path))
    assert config.model == from_hugging_face(HF_CONFIG)
    assert config.checkpoint.weights == str(tmp_path)


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("model.path=[]", "config_type", r"model.path = \[\]"),
        ("model.path=nowhere", "config_file", "nowhere/config.json"),
    ],
)
def test_a_model_folder_is_named_once(tmp_path: Path, override: str, code: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refusal:
        load(without_shape(tmp_path), [override])
    assert refusal.value.code == code


def test_a_later_layer_says_where_the_parameters_are(tmp_path: Path) -> None:
    path = without_shape(tmp_path)
    loaded = load_with_origins(path, ["checkpoint.weights=there"])
    assert loaded.config.model == from_hugging_face(HF_CONFIG)
    assert loaded.config.checkpoint.weights == "there"
    assert loaded.origins["checkpoint.weights"] == "--set"
    assert loaded.origins["model.hidden_size"] == str(tmp_path / "config.json")
    assert load(path, ["checkpoint.weights=there", f"model.path={tmp_path}"]).checkpoint.weights == str(
        tmp_path
    )
    # What takes the shape alone still draws the parameters anew.
    assert not load(path, [f"model.hf_config={tmp_path}/config.json"]).checkpoint.weights

    text = path.read_text()
    path.write_text(
        text.replace("path =", "hf_config =").replace(f'"{tmp_path}"', f'"{tmp_path}/config.json"') + WEIGHTS
    )
    assert load(path).checkpoint.weights == "before"
    assert load(path, [f"model.path={tmp_path}"]).checkpoint.weights == str(tmp_path)

    path.write_text(text + WEIGHTS)
    with pytest.raises(InvalidInputError, match="weights = 'before' both say") as refusal:
        load(path)
    assert refusal.value.code == "config_value"


def test_a_model_folder_and_a_config_json_in_one_file_are_refused(tmp_path: Path) -> None:
    path = without_shape(tmp_path)
    path.write_text(path.read_text().replace("[model]", "[model]\nhf_config = 'config.json'"))
    with pytest.raises(InvalidInputError, match=r"hf_config = 'config\.json' both say") as refusal:
        load(path)
    assert refusal.value.code == "config_value"
    # An override says what is meant.
    assert load(path, [f"model.path={tmp_path}"]).checkpoint.weights == str(tmp_path)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("planner.profile=p.json", "p.json"),
        ('planner.profile="p.json"', "p.json"),
        ("planner.profile='p q.json'", "p q.json"),
        ("planner.profile=a=b", "a=b"),
        ("planner.profile=7", "7"),
        ("planner.profile=", ""),
        ("planner.strategies=1x<tp2,pp2>", ("1x<tp2,pp2>",)),
        ("planner.strategies=2x<1>; 1x<tp2>", ("2x<1>", "1x<tp2>")),
        ('planner.strategies=["2x<1>", "1x<tp2>"]', ("2x<1>", "1x<tp2>")),
        ('planner.strategies="2x<1>"', ("2x<1>",)),
        ("planner.checkpointing=full", ("full",)),
        ("planner.checkpointing=none; full", ("none", "full")),
        ('planner.checkpointing="selective"', ("selective",)),
        ("planner.context=ring", "ring"),
    ],
)
def test_a_string_needs_no_quotes(tmp_path: Path, override: str, value: object) -> None:
    planner = load(write(tmp_path), ["planner.strategies=search", override]).planner
    assert getattr(planner, override.partition("=")[0].removeprefix("planner.")) == value


def test_a_choice_without_quotes_is_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"train\.dtype = 'int8' must be one of") as refusal:
        load(write(tmp_path), ["train.dtype=int8"])
    assert refusal.value.code == "config_value"


def test_each_value_says_where_it_comes_from(tmp_path: Path) -> None:
    text = 'preset = "laptop"\n' + MINIMAL.replace('[output]\ndirectory = "runs/test"', "")
    path = write(tmp_path, text)
    loaded = load_with_origins(path, ["train.seed=3", "data.sequences_per_batch=5"])
    assert loaded.config.output.directory == "runs/laptop"
    wanted = {
        "output.directory": "preset laptop",
        "train.steps": str(path),
        "train.seed": "--set",
        "train.epochs": "default",
        "data.sequences_per_batch": "--set",
        # It was taken out by what says the same.
        "data.tokens_per_batch": "default",
    }
    assert {name: loaded.origins[name] for name in wanted} == wanted
    assert list(loaded.origins) == field_names()


def test_what_a_config_json_gives_says_so(tmp_path: Path) -> None:
    path = without_shape(tmp_path)
    origins = load_with_origins(path, ["model.vocab_size=400"]).origins
    assert origins["model.hidden_size"] == str(tmp_path / "config.json")
    assert origins["model.vocab_size"] == "--set"
    # What no file says is not told as if it were there.
    assert origins["model.attention_output_bias"] == f"left out of {tmp_path / 'config.json'}"
    assert origins["checkpoint.weights"] == f"model.path of {path}"
    by_option = load_with_origins(path, [f"model.path={tmp_path}"]).origins
    assert by_option["checkpoint.weights"] == "model.path of --set"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_and_little_else_is_a_configuration(tmp_path: Path, name: str) -> None:
    model = MINIMAL.partition("[data]")[0]
    config = load(write(tmp_path, model + "[train]\nsteps = 1\n"), preset=name)
    assert config.output.directory.endswith(name)
    gpus = {"laptop": 4, "node": 8, "nodes": 128}[name]
    cluster = Cluster(gpus, min(gpus, 8))
    for strategy in named_strategies(config.planner, cluster):
        assert sum(map(len, strategy.place(cluster))) == gpus


def test_a_preset_is_one_of_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="preset = 'big' must be one of 'laptop'") as refusal:
        load(write(tmp_path), preset="big")
    assert str(refusal.value).endswith("; choose one")
    with pytest.raises(InvalidInputError, match=r"; choose one; did you mean 'laptop'\?$"):
        load(write(tmp_path), preset="Labtop")
    assert refusal.value.code == "config_value"
    with pytest.raises(InvalidInputError, match="preset = 3"):
        load(write(tmp_path, "preset = 3\n" + MINIMAL))
    # What is asked for on the command line counts.
    assert load(write(tmp_path, "preset = 3\n" + MINIMAL), preset="laptop").train.steps == 10
