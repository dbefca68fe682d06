"""Checks of the cluster."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hydraulis import Cluster, Scheme
from hydraulis.data.sources.prepare import prepare_sources
from hydraulis.parallel.communicators import Channels, communicator_bytes
from hydraulis.preflight import cluster
from hydraulis.runtime.memory.resident import ResidentMemory, resident_memory
from preflight.checked_run import CAPS, findings, read
from preflight.preflight_workers import count_bytes
from profiles import made_up_profile
from ranks import run_ranks


def test_several_devices_are_named_and_the_first_is_checked(made: Path, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(
        made_up_profile({**CAPS, "<1>": 8}, device="B", slowdown=2.0).to_json()
    )
    both = findings(read(made, f"planner.device_profiles=['{tmp_path}/small.json']"))
    alone = findings(read(made))
    assert both["profile"].status == "ok"
    assert both["profile"].text == (
        "made-up + made-up of none and B, each for the ranks on it; the checks below are for none"
    )
    assert both["longest"] == alone["longest"]


def test_a_profile_of_another_device_is_a_warning_where_the_ranks_device_is_known(made: Path) -> None:
    assert findings(read(made, "train.device=auto"))["profile"].status == "ok"
    found = findings(read(made, "train.device=cpu"))["profile"]
    assert found.status == "warning"
    assert "plans count with the times and the memory of none" in found.text


def test_without_a_profile_the_run_measures_one(made: Path) -> None:
    found = findings(read(made, "planner.profile=", "train.steps=3", "train.frozen=model.embed_tokens.*"))
    assert found["profile"].status == found["longest"].status == "later"
    assert "8,192 of them frozen;" in found["model"].text
    tied = findings(
        read(
            made, "train.frozen=model.embed_tokens.*", "model.tie_word_embeddings=true", "checkpoint.weights="
        )
    )
    assert "8,192 of them frozen (with model.tie_word_embeddings" in tied["model"].text


def test_a_sequence_that_no_strategy_admits_is_refused_once_it_is_known(made: Path, tmp_path: Path) -> None:
    (tmp_path / "narrow.json").write_text(made_up_profile({"<1>": 20}).to_json())
    overrides = (f"data.index_directory={tmp_path}/index", f"planner.profile={tmp_path}/narrow.json")
    config = read(made, *overrides, "planner.strategies=4x<1>")
    assert findings(config)["longest"].status == "later"
    prepare_sources(config.data)
    assert findings(config)["longest"].code == "sequence_too_long"


def test_a_prompt_that_no_strategy_admits_is_refused(made: Path) -> None:
    """The run compares it with the longest admitted sequence too, with or without indexed data."""
    samples = ("samples.every=1", "samples.prompts=['ab']", "samples.tokens=95", "data.max_tokens=97")
    found = findings(read(made, *samples))["longest"]
    assert found.code == "sequence_too_long"
    assert "97 tokens, and no strategy admits more than 96" in found.text
    found = findings(read(made, *samples, "samples.tokens=40", "data.max_tokens=64"))["longest"]
    assert found.status == "ok"
    assert "; longest prompt of samples with its continuation: 42 tokens, 96 are admitted; " in found.text
    assert "prompt" not in findings(read(made))["longest"].text


def test_a_search_uses_the_schemes_that_fit(made: Path) -> None:
    found = findings(read(made, "planner.strategies=search", "planner.profile="))
    assert found["strategies"].text.startswith("a search over <1>, <pp2>, ")
    found = findings(read(made, "planner.strategies=search"))
    assert found["strategies"].text.startswith("a search over <1>, <pp2>, <cp4>, <tp2> on 4 ranks")
    assert "96 are admitted" in found["longest"].text


def test_of_many_schemes_only_number_and_degrees_are_listed() -> None:
    schemes = [Scheme(text) for text in ("<1>", "<tp2>", "<tp4>", "<cp2>", "<pp2>", "<tp2,cp2>", "<tp2,pp2>")]
    assert cluster._listed(schemes) == "<1>, <tp2>, <tp4>, <cp2>, <pp2>, <tp2,cp2>, <tp2,pp2>"
    more = [*schemes, Scheme("<cp4>"), Scheme("<tp8>")]
    assert cluster._listed(more) == "9 schemes (tp up to 8, cp up to 4, pp up to 2)"


def test_steps_planned_together_are_told(made: Path) -> None:
    assert "together" not in findings(read(made))["strategies"].text
    text = findings(read(made, "planner.lookahead=8", "planner.max_delay=3"))["strategies"].text
    assert "; the batches of 8 steps are planned together, and a sequence moves by at most 3 steps" in text


def test_a_list_of_strategies_without_work_for_all_ranks_is_a_warning(made: Path) -> None:
    config = read(made, "planner.strategies=1x<tp2>;1x<1>;1x<tp2>+1x<1>")
    found = findings(config)["strategies"]
    assert found.status == "warning"
    assert "; at most 3 of 4 ranks work: " in found.text
    assert "ranks work" not in findings(config, gpus=3)["strategies"].text
    assert "ranks work" not in findings(read(made, "planner.strategies=search"))["strategies"].text


def test_batches_without_a_sequence_for_every_replica_are_a_warning(made: Path, tmp_path: Path) -> None:
    config = read(made, f"data.index_directory={tmp_path}/index", "planner.strategies=search")
    assert findings(config, gpus=10_000)["strategies"].status == "ok"
    prepare_sources(config.data)
    assert findings(config)["strategies"].status == "ok"
    found = findings(config, gpus=10_000)["strategies"]
    assert found.status == "warning"
    assert re.search(
        r"about \d\.\d sequences, and a replica at most 4 ranks: about \d\d of 10,000 ranks can work; raise "
        r"data\.tokens_per_batch",
        found.text,
    )
    enough = replace(config, data=replace(config.data, tokens_per_batch=None, sequences_per_batch=2_500))
    assert findings(enough, gpus=10_000)["strategies"].status == "ok"


def test_missing_devices_are_checked_later(made: Path) -> None:
    assert findings(read(made, "train.device=cpu"))["device"].status == "ok"
    if not torch.cuda.is_available():
        found = findings(read(made, "train.device=auto"))["device"]
        assert (found.status, found.text.partition(":")[0]) == ("ok", "no CUDA device here")
        found = findings(read(made, "train.device=cuda"))["device"]
        assert found.status == "later"
        assert found.text.startswith("train.device = 'cuda': the 4 ranks of a node")
        assert "this machine has 0:" in found.text


def test_ranks_that_share_a_device_are_a_warning(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = read(made, "train.device=cuda")
    assert findings(config)["device"].status == "later"
    monkeypatch.setenv("HYDRAULIS_SHARE_DEVICES", "1")
    found = findings(config)["device"]
    assert found.status == "warning"
    assert "times mean nothing" in found.text


def test_the_memory_of_a_rank_may_follow_from_the_devices_of_the_run(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(made, "train.device=cuda", "planner.profile=")
    search = replace(config.planner, memory_mib=None, strategies=("search",))
    for planner in (replace(config.planner, memory_mib=None), search):
        absent = replace(config, planner=planner)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert findings(absent)["memory"].status == "later"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        properties = SimpleNamespace(total_memory=80 << 30, multi_processor_count=132)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, given=properties: given)
        assert findings(absent)["memory"].status == "ok"


def test_a_saved_profile_has_the_memory_of_a_rank(made: Path, tmp_path: Path) -> None:
    text = (made / "run.toml").read_text().replace("memory_mib = 6\n", "")
    (tmp_path / "run.toml").write_text(text)
    for strategies in ("2x<tp2>", "search"):
        found = findings(read(tmp_path, "train.device=cpu", f"planner.strategies={strategies}"))
        assert found["strategies"].status == found["memory"].status == found["longest"].status == "ok"
        assert "planner.memory_mib" not in found["memory"].text


def test_communicators_of_devices_are_part_of_a_ranks_memory(made: Path) -> None:
    config = read(made, "train.device=cuda", "planner.profile=", "planner.memory_mib=10000")
    schemes = [Scheme("<1>"), Scheme("<tp2>"), Scheme("<pp2>")]
    config = replace(config, planner=replace(config.planner, strategies=("4x<1>", "2x<tp2>", "2x<pp2>")))
    mib = communicator_bytes(schemes, Cluster(4, 4), Channels(8, 16)) >> 20
    assert f"{mib:,} MiB of NCCL's communicators" in findings(config)["memory"].text
    buffered = replace(config, train=replace(config.train, symmetric_memory=True))
    said = f"{mib + 66:,} MiB of NCCL's communicators and symmetric buffers"
    assert said in findings(buffered)["memory"].text
    few = replace(config, planner=replace(config.planner, memory_mib=mib))
    found = findings(few)["memory"]
    assert found.code == "scheme_too_large"
    assert f"MiB before any activations, and planner.memory_mib = {mib:,} MiB: remove planner" in found.text
    assert re.search(r"counts, or set planner\.memory_mib above [\d,]+, or leave out", found.text)
    # More ranks would need more communicators.
    assert "use more ranks" not in found.text
    on_cpu = replace(few, train=replace(few.train, device="cpu"))
    assert findings(on_cpu)["memory"].status == "ok"


def test_the_channels_of_communicators_are_checked_where_a_device_is_at_hand(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(made, "train.exchange_channels=32", "planner.profile=", "planner.memory_mib=10000")
    config = replace(config, planner=replace(config.planner, strategies=("4x<1>", "2x<tp2>", "2x<pp2>")))
    assert "communicators" not in findings(config)["memory"].text
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for multiprocessors, status in ((132, "ok"), (80, "refused")):
        device = SimpleNamespace(multi_processor_count=multiprocessors)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, device=device: device)
        found = findings(config)["memory"]
        assert found.status == status
        assert ("MiB of NCCL's communicators" in found.text) == (status == "ok")
        assert ("train.exchange_channels = 32" in found.text) == (status == "refused")
    assert findings(replace(config, train=replace(config.train, device="cpu")))["memory"].status == "ok"


def test_more_ranks_are_a_remedy_where_the_optimizer_state_is_the_largest_part(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(made, "planner.profile=", "train.device=cpu")
    for optimizer, local, is_remedy in ((9, 1, True), (1, 9, False)):
        resident = ResidentMemory(optimizer << 20, local << 20, Scheme("<1>"))
        monkeypatch.setattr(cluster, "resident_memory", lambda *_, given=resident: given)
        found = findings(config)["memory"]
        assert "= 6 MiB: set planner.memory_mib above 10, or leave out that scheme" in found.text
        assert found.text.endswith(", or use more ranks") is is_remedy


def test_float32_on_cuda_is_warned_of(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for device in ("auto", "cuda"):
        found = findings(read(made, f"train.device={device}", "train.dtype=float32"))["device"]
        assert found.status == "warning"
        assert "train.dtype = 'float32'" in found.text
    for override in ("train.dtype=bfloat16", "train.dtype=auto"):
        assert findings(read(made, "train.device=cuda", override))["device"].status == "ok"
    assert findings(read(made, "train.device=cpu", "train.dtype=float32"))["device"].status == "ok"


def test_predicted_resident_memory_equals_the_runtimes(made: Path) -> None:
    config = read(made, "train.frozen=model.layers.0.*")
    schemes = [Scheme("<1>"), Scheme("<tp2>"), Scheme("<pp2>")]
    resident = resident_memory(config, schemes, Cluster(2, 2))
    for rank in run_ranks(2, count_bytes, config, [str(scheme) for scheme in schemes]):
        assert rank["local"] == resident.local
        # Shards differ by a few elements, since parameters do not divide evenly.
        assert rank["optimizer"] == pytest.approx(resident.optimizer, rel=0.01)
    assert str(resident.scheme) == "<1>"


def test_the_kernels_of_the_layers_are_named_and_checked(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = findings(read(made))["kernels"]
    assert (usual.status, "compiled" in usual.text, "float32" in usual.text) == ("ok", False, True)
    messages = findings(read(made, "train.float8_messages=true"))["kernels"]
    assert (messages.status, "messages between stages in float8" in messages.text) == ("ok", True)
    on_cpu = findings(read(made, "train.compile=true", "train.device=cpu"))["kernels"]
    assert (on_cpu.status, on_cpu.code) == ("refused", "device_missing")
    half = ("planner.profile=", "train.dtype=bfloat16", "train.float8=true")
    emulated = findings(read(made, *half, "train.device=cpu"))["kernels"]
    assert (emulated.status, "in float8; the CPU emulates float8" in emulated.text) == ("warning", True)
    on_cpu = findings(read(made, "train.attention=flash-attn-3", "train.device=cpu"))["kernels"]
    assert (on_cpu.status, on_cpu.code) == ("refused", "attention_unsupported")
    plain = findings(read(made, "train.attention=plain"))["kernels"]
    assert (plain.status, plain.text.endswith("attention by plain")) == ("ok", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for override in ("train.compile=true", "train.attention=flash-attn-3"):
        assert findings(read(made, override, "train.device=cuda"))["kernels"].status == "later"
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a device")
    monkeypatch.setenv("CC", "cc")
    for spec, status in ((None, "refused"), (object(), "ok")):
        monkeypatch.setattr("hydraulis.model.leaves.find_spec", lambda _, spec=spec: spec)
        compiled = findings(read(made, "train.compile=true", "train.device=cuda"))["kernels"]
        assert (compiled.status, "operations compiled" in compiled.text) == (status, spec is not None)
    old = findings(read(made, *half, "train.device=cuda"))["kernels"]
    assert (old.status, old.code) == ("refused", "device_missing")
    for reached, status in ((True, "ok"), (False, "refused")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_, reached=reached: reached)
        copies = findings(read(made, "train.symmetric_memory=true", "train.device=cuda"))["kernels"]
        assert (copies.status, "exchange through" in copies.text) == (status, reached)
