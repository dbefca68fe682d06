"""Which schemes a run may use."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import refused
from hydraulis import Cluster, HydraulisError, Scheme
from hydraulis.config.layered.layers import PRESETS
from hydraulis.config.layered.table import from_table
from hydraulis.config.run import RunConfig, load
from hydraulis.planner.profile_document import with_schemes
from hydraulis.runtime.memory.resident import resident_memory
from hydraulis.runtime.planning.run_schemes import run_schemes, with_layer_splits
from profiles import made_up_profile

PROFILE = made_up_profile(
    {"<1>": 64, "<tp2>": 128, "<tp3>": 128, "<pp2>": 64, "<pp4>": 9, "<cp4>": 64, "<tp8>": 99}
)
CLUSTER = Cluster(gpus=4, gpus_per_node=4)


def config(strategies: Sequence[str], memory_mib: int = 64, **planner: Any) -> RunConfig:
    """Give a run of a model of 4 query and 2 key/value heads, and 3 layers."""
    tables = {
        "model": {
            "vocab_size": 256,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        "data": {"tokens_per_batch": 512},
        "train": {"steps": 1},
        "planner": {"strategies": list(strategies), "memory_mib": memory_mib, **planner},
        "output": {"directory": "run"},
    }
    return from_table(RunConfig, tables, "")


def schemes(*texts: str) -> list[Scheme]:
    return sorted(Scheme(text) for text in texts)


def test_a_list_uses_those_of_its_strategies() -> None:
    listed = config(["1x<tp2>+2x<1>", "4x<1>"])
    assert run_schemes(listed, CLUSTER, None) == schemes("<1>", "<tp2>")
    assert run_schemes(listed, CLUSTER, PROFILE) == schemes("<1>", "<tp2>")


def test_a_search_leaves_out_schemes_of_a_profile_that_have_no_memory_for_a_token() -> None:
    caps = {"<1>": 0, "<tp2>": 64, "<pp2>": 64}
    assert run_schemes(config(["search"]), CLUSTER, made_up_profile(caps)) == schemes("<tp2>", "<pp2>")
    # Another device may have room for what the first has not.
    other = made_up_profile({"<1>": 0, "<tp2>": 64, "<pp2>": 0}, device="B")
    first = made_up_profile({"<1>": 64, "<tp2>": 0, "<pp2>": 0})
    both = first.with_other_devices([(1.0, other)])
    assert run_schemes(config(["search"]), CLUSTER, both) == schemes("<1>", "<tp2>")
    # The planner refuses these, and names the one that lacks least.
    assert run_schemes(config(["search"]), CLUSTER, made_up_profile({"<1>": 0})) == schemes("<1>")


def test_sharded_gradients_need_schemes_without_stages() -> None:
    def sharded(strategies: Sequence[str]) -> RunConfig:
        whole = config(strategies)
        return replace(whole, train=replace(whole.train, sharding="gradients"))

    with refused("scheme_model_mismatch", "planner.strategies", "<pp2>", "train.sharding = 'gradients'"):
        run_schemes(sharded(["2x<pp2>"]), CLUSTER, None)
    searched = run_schemes(sharded(["search"]), CLUSTER, None)
    assert {scheme.pp for scheme in searched} == {1}
    assert {scheme.pp for scheme in run_schemes(config(["search"]), CLUSTER, None)} > {1}
    (one,) = schemes("<1>")
    held = [resident_memory(made(["4x<1>"]), [one], CLUSTER).local for made in (config, sharded)]
    # Two of three layers stay, and take more than embedding and head with its norm.
    assert held[0] - held[1] == 4 * (layer_elements() + 2 * 256 * 64 + 64)


def layer_elements() -> int:
    """Return the parameters of a layer of `config`: matrices of 64 hidden units, and two norms."""
    return 64 * (64 + 2 * 32 + 64 + 3 * 128) + 2 * 64


def test_ranks_hold_memory_for_the_longest_stage_of_all_splits() -> None:
    listed = config(["2x<pp2>"], layer_splits=1)
    usual = run_schemes(listed, CLUSTER, None)
    split = with_layer_splits(listed, usual)
    assert split == schemes("<pp2>", "<pp2,split:1-2>")
    assert with_layer_splits(config(["2x<pp2>"]), usual) == usual
    sizes = [resident_memory(listed, chosen, CLUSTER) for chosen in (usual, split)]
    assert sizes[0].local <= sizes[1].local
    # No owner holds its elements under every split: all ranks own equal shares.
    assert sizes[0].optimizer >= sizes[1].optimizer
    with refused("scheme_model_mismatch", "<pp2,split:1-3> splits 4 layers and the model has 3"):
        run_schemes(config(["2x<pp2,split:1-3>"]), CLUSTER, None)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_schemes_on_any_number_of_ranks(tmp_path: Path, preset: str, ranks: int) -> None:
    # Deep and wide enough for 8 ranks in any scheme.
    model = "[model]\nvocab_size = 256\nhidden_size = 64\nintermediate_size = 64\nnum_hidden_layers = 8\n"
    path = tmp_path / "run.toml"
    path.write_text(
        f"{model}num_attention_heads = 8\nnum_key_value_heads = 8\n[train]\nsteps = 1\n", encoding="utf-8"
    )
    # As from a device; the preset `laptop` sets its own.
    loaded = load(path, ["planner.memory_mib=81920"] if preset != "laptop" else [], preset=preset)
    found = run_schemes(loaded, Cluster(gpus=ranks, gpus_per_node=ranks), None)
    assert {scheme.ranks for scheme in found} == {2**power for power in range(ranks.bit_length())}


def test_a_search_uses_those_of_the_profile_that_fit_model_and_cluster() -> None:
    # <tp3> divides no head, <pp4> has more stages than there are layers, <tp8> more ranks than the cluster.
    assert run_schemes(config(["search"]), CLUSTER, PROFILE) == schemes("<1>", "<tp2>", "<pp2>", "<cp4>")
    named = config(["search"], schemes=["<tp2>", "<1>"])
    assert run_schemes(named, CLUSTER, PROFILE) == schemes("<1>", "<tp2>")


def test_without_a_profile_a_search_uses_powers_of_two_with_room() -> None:
    everything = schemes("<1>", "<tp2>", "<tp4>", "<pp2>", "<tp2,pp2>", "<cp2>", "<cp4>", "<tp2,cp2>")
    assert run_schemes(config(["search"]), CLUSTER, None) == everything
    kinds = run_schemes(config(["search"], checkpointing=["none", "full"]), CLUSTER, None)
    assert kinds == sorted(
        scheme.with_checkpointing(kind) for scheme in everything for kind in ("none", "full")
    )
    assert run_schemes(config(["search"]), Cluster(gpus=4, gpus_per_node=1), None) == schemes("<1>", "<pp2>")
    # 144,000 parameters: those and gradients take 1.15 MB, a fourth of the optimizer state 0.58 MB;
    # a rank may hold 1.68 MB.
    few = run_schemes(config(["search"], memory_mib=2), CLUSTER, None)
    assert Scheme("<1>") not in few
    assert Scheme("<tp4>") in few


@pytest.mark.parametrize(
    ("strategies", "settings", "code"),
    [
        (["1x<tp8>"], {}, "strategy_unplaceable"),
        (["1x<tp3>"], {}, "scheme_model_mismatch"),
        (["1x<tp2,full:1/7>"], {}, "scheme_model_mismatch"),
        (["search"], {"schemes": ["<tp8>"]}, "strategy_unplaceable"),
        (["search"], {"schemes": ["<tp4>"]}, "scheme_unknown"),
        (["search"], {"schemes": ["tp4"]}, "strategy_invalid"),
        (["4x<pp3>"], {}, "strategy_unplaceable"),
        (["1x<pp3>"], {}, "scheme_unknown"),
    ],
)
def test_schemes_that_do_not_fit_are_refused(
    strategies: list[str], settings: dict[str, Any], code: str
) -> None:
    with pytest.raises(HydraulisError) as refusal:
        run_schemes(config(strategies, **settings), CLUSTER, PROFILE)
    assert refusal.value.code == code


def test_a_refusal_names_the_setting_of_the_scheme() -> None:
    searched = config(["search"], schemes=["<tp3>"])
    with refused("scheme_model_mismatch", "planner.schemes: "):
        run_schemes(searched, CLUSTER, PROFILE)
    with refused("scheme_model_mismatch", "--schemes: "):
        run_schemes(searched, CLUSTER, PROFILE, "--schemes")


def test_a_search_without_schemes_is_refused() -> None:
    wide = made_up_profile({"<tp8>": 64})
    with refused("no_strategies", "4 ranks"):
        run_schemes(config(["search"]), CLUSTER, wide)


def test_a_profile_is_reduced_to_the_schemes_of_the_buffers() -> None:
    cut = with_schemes(PROFILE, schemes("<tp2>", "<1>"))
    assert sorted(cut.schemes) == ["<1>", "<tp2>"]
    assert cut.micro_batch_ms(Scheme("<tp2>"), [7]) == PROFILE.micro_batch_ms(Scheme("<tp2>"), [7])
    assert with_schemes(cut, schemes("<tp2>", "<1>")) is cut
