"""The optimizers by name: their state, their own settings, and the reasons why others are refused."""

import pytest

from hydraulis.config.optimizer import OptimizerConfig
from hydraulis.config.optimizer_kinds import NOT_ELEMENTWISE, OPTIMIZERS
from hydraulis.errors import InvalidInputError


def refused(**settings: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        OptimizerConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.code == "config_value"
    return str(caught.value)


@pytest.mark.parametrize("name", NOT_ELEMENTWISE)
def test_an_optimizer_of_whole_parameters_is_refused_with_the_reason(name: str) -> None:
    message = refused(name=name)
    assert f"optimizer.name = '{name}'" in message
    assert f"{name} {NOT_ELEMENTWISE[name]}" in message
    assert all(f"'{known}'" in message for known in OPTIMIZERS)


def test_a_reason_is_found_in_any_spelling() -> None:
    assert "Muon orthogonalises" in refused(name="Muon")
    for name in ("AdamW-8bit", "adam8bit", "paged_adamw_8bit", "Lion4Bit", "adamw_fp8"):
        assert f"{name} compresses its state in blocks" in refused(name=name)


def test_a_misspelled_name_is_refused_with_the_nearest_one() -> None:
    assert "'rmsprop'" in refused(name="rmspropp")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("adamw", "momentum", 0.9),
        ("sgd", "eps", 1e-6),
        ("lion", "alpha", 0.9),
        ("adagrad", "betas", (0.8, 0.9)),
    ],
)
def test_a_setting_of_another_optimizer_is_refused(name: str, setting: str, value: object) -> None:
    message = refused(name=name, **{setting: value})
    assert f"optimizer.{setting} = " in message
    assert f"optimizer.name = '{name}'" in message
    users = [other for other, kind in OPTIMIZERS.items() if setting in kind.settings]
    assert ", ".join(users) in message


def test_nesterov_needs_momentum() -> None:
    assert "optimizer.momentum" in refused(name="sgd", nesterov=True)
    assert OptimizerConfig(name="sgd", nesterov=True, momentum=0.9).nesterov


def test_momentum_adds_to_the_state() -> None:
    assert OptimizerConfig().moments == ("exp_avg", "exp_avg_sq")
    assert OptimizerConfig(name="sgd").moments == ()
    assert OptimizerConfig(name="sgd", momentum=0.9).moments == ("momentum_buffer",)
    assert OptimizerConfig(name="rmsprop", momentum=0.9).moments == ("square_avg", "momentum_buffer")


def test_an_optimizer_gets_its_own_settings_alone() -> None:
    assert OptimizerConfig(name="adagrad", eps=1e-6).own_settings() == {"eps": 1e-6}
    assert OptimizerConfig(name="sgd", momentum=0.5).own_settings() == {"momentum": 0.5, "nesterov": False}
