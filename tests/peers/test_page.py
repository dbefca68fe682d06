"""Runs the lines of docs/drop-in.md with the real packages.

The environment lacks slime, Megatron-core's schedulers and the dependencies of axolotl's trainers: a module
with the name that the lines replace stands for each.
"""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from helpers import ROOT, at_least

sys.path.append(str(ROOT / "examples/peers"))
toy: Any = import_module("toy")

TEXT = (ROOT / "docs/drop-in.md").read_text(encoding="utf-8")
FRAMEWORKS = TEXT[TEXT.index("\n## Frameworks") : TEXT.index("\n## Offline")]
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", FRAMEWORKS, re.MULTILINE | re.DOTALL))
DATA = toy.toy_data(80, 64)
LENGTHS = [len(row) for row in DATA["input_ids"]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def run(section: str, **names: Any) -> dict[str, Any]:
    """Run the blocks of a section with the reader's own names, and return all names."""
    found = {"data": DATA, "lengths": LENGTHS, "epochs": 2, "rank": 0, "ranks": 1} | names
    bodies = re.findall(r"^```python\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    for body in at_least(1, bodies):
        exec(compile(body, f"docs/drop-in.md, {section}", "exec"), found)
    return found


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def changed(model: torch.nn.Module) -> bool:
    """Whether the toy model was trained."""
    state = toy.toy_model().state_dict()
    return any(not torch.equal(state[name], value) for name, value in model.state_dict().items())


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_every_section_is_run() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in at_least(10, SECTIONS) if f'"{name}"' not in source] == []


def test_transformers() -> None:
    model = toy.toy_model()
    names = run("transformers and TRL", model=model)
    assert names["trainer"].state.global_step >= 3
    assert changed(model)


def test_accelerate() -> None:
    model = toy.toy_model()
    names = run("accelerate", model=model, optimizer=optimizer_of(model))
    assert next(names["batches"], None) is None
    assert changed(model)


@pytest.mark.usefixtures("group")
def test_plain_ddp() -> None:
    model = toy.toy_model()
    names = run("Plain DDP", model=DistributedDataParallel(model), optimizer=optimizer_of(model))
    assert names["sampler"].epoch == 2
    assert changed(model)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("place", [(0, 0), (1, 0), (1, 1)])
def test_plain_ddp_resumes(monkeypatch: pytest.MonkeyPatch, place: tuple[int, int]) -> None:
    """The same lines train the rest of a run whose loader has loaded a state."""
    lines, data = SECTIONS["Plain DDP"], toy.toy_data(1100, 12)
    loaded = "\nloader.load_state_dict(state)\nfor step, batches in sampler.group"
    saved = "\n    states[step.epoch, step.index] = loader.state_dict()\n```\n"
    model = DistributedDataParallel(toy.toy_model())
    options = {"data": data, "lengths": list(map(len, data["input_ids"])), "model": model, "states": {}}
    options["optimizer"] = optimizer_of(model)
    monkeypatch.setitem(SECTIONS, "Plain DDP", lines.replace("\n```\n", saved, 1))
    whole = run("Plain DDP", **options)["states"]
    assert len(whole) > 4
    monkeypatch.setitem(
        SECTIONS,
        "Plain DDP",
        SECTIONS["Plain DDP"].replace("\nfor step, batches in sampler.group", loaded, 1),
    )
    rest = run("Plain DDP", **(options | {"state": whole[place], "states": {}}))["states"]
    assert list(rest) == list(whole)[list(whole).index(place) + 1 :]


def test_shared_prompts() -> None:
    model = toy.toy_model()
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, toy.VOCABULARY, (10, 5)).tolist()
    rows = [prompts[i // 4] + rng.integers(0, toy.VOCABULARY, 1 + i % 7).tolist() for i in range(40)]
    names = run(
        "Shared prompts",
        model=model,
        data=[{"input_ids": row} for row in rows],
        lengths=[len(row) for row in rows],
        prompt_number=np.arange(40) // 4,
        prompt_tokens=[5] * 40,
    )
    assert names["sampler"].num_steps == 1
    assert names["step"].tokens == 10 * 5 + sum(1 + i % 7 for i in range(40))
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_trl_s_asynchronous_grpo(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = import_module("trl.experimental.async_grpo.async_grpo_trainer")
    monkeypatch.setattr(trainer, "TokenBudgetBatcher", trainer.TokenBudgetBatcher)
    names = run("TRL's asynchronous GRPO")
    assert trainer.TokenBudgetBatcher is names["BalancedTokenBudgetBatcher"]


def test_lightning() -> None:
    model = import_module("lightning_module").Model()
    names = run("Lightning", model=model)
    assert names["module"].sampler.num_steps >= 1
    assert changed(model.model)


def test_verl_and_slime(monkeypatch: pytest.MonkeyPatch) -> None:
    balancing: Any = import_module("verl.utils.seqlen_balancing")
    name = "get_seqlen_balanced_partitions"
    monkeypatch.setattr(balancing, name, getattr(balancing, name))
    schedule = ModuleType("dp_schedule")
    stand_in(monkeypatch, "slime.utils", dp_schedule=schedule)
    names = run("verl and slime")
    assert balancing.get_seqlen_balanced_partitions is names["verl_partition"].balanced_partitions
    assert schedule.build_dp_schedule.__name__ == "build_dp_schedule"


def test_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = type("PackingSchedulerEnum", (), {"DP_BALANCED": "dp_balanced"})
    base = type("DpBalancedScheduler", (), {})
    schedule = stand_in(
        monkeypatch,
        "megatron.core.datasets.data_schedule",
        PackingSchedulerEnum=kinds,
        DpBalancedScheduler=base,
        scheduler_map={"dp_balanced": base},
    )
    run("Megatron-core")
    assert issubclass(schedule.scheduler_map["dp_balanced"], base)
    assert schedule.scheduler_map["dp_balanced"] is not base


def test_axolotl(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = import_module("axolotl.utils.samplers")
    monkeypatch.setattr(samplers, "MultipackBatchSampler", samplers.MultipackBatchSampler)
    trainer = stand_in(
        monkeypatch, "axolotl.core.trainers.base", MultipackBatchSampler=samplers.MultipackBatchSampler
    )
    ours = run("axolotl")["axolotl_multipack"].BalancedMultipackBatchSampler
    assert ours is samplers.MultipackBatchSampler is trainer.MultipackBatchSampler


def test_torchtitan() -> None:
    names = run("torchtitan", local_batch_size=2, accumulated_steps=2)
    inputs, labels = next(iter(names["loader"]))
    assert inputs["input"].shape == labels.shape == (2, 8192)
