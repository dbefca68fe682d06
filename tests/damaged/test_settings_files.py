"""No damaged configuration, model, profile or measurement gives a traceback: each is refused or read."""

import json
from pathlib import Path

import numpy as np
import pytest

from config.hugging_face.test_read import LLAMA
from config.run_file import MINIMAL, field_names
from damaged.damage import CASES, TIMEOUT_S, Damaged, accepted, pick
from hydraulis.config.hugging_face.read import from_hugging_face, read_max_positions, stated_fields
from hydraulis.config.run import load
from hydraulis.planner.profile import load_profile
from hydraulis.profile.observations import Observation, Timing
from hydraulis.profile.record import ObservationFile, conditions_of
from hydraulis.runtime.hugging_face.weights import HuggingFaceWeights
from planner.test_profile_document import workload
from profiles import made_up_profile
from runtime.hugging_face import test_weights

pytestmark = pytest.mark.timeout(TIMEOUT_S)


def test_a_configuration_is_read_or_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "run.toml").write_text(MINIMAL)
    results = [
        accepted(lambda: load(folder / "run.toml", []))  # noqa: B023
        for folder, _ in Damaged(whole, tmp_path, 8)
    ]
    assert 0 < sum(results) < len(results)


def test_a_models_configuration_is_read_or_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps(LLAMA) + "\n")
    results = []
    for _, path in Damaged(whole, tmp_path, 9):
        results += [
            accepted(lambda: read(path))  # noqa: B023
            for read in (from_hugging_face, read_max_positions, stated_fields)
        ]
    assert 0 < sum(results) < len(results)


def test_a_value_of_a_configuration_is_read_or_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(MINIMAL)
    rng = np.random.default_rng(10)
    values = ["", "-1", "0", str(2**63), str(10**400), "1e308", "nan", "inf", "[[[]]]", "[" * 3_000, "'a\0'"]
    values += ["{a = 1}", "0x" + "f" * 9_000, "2020-01-01", "\udcff", "'\ud800'", "x" * 9_000, "true"]
    results = []
    for _ in range(CASES):
        override = f"{pick(field_names(), rng)}={pick(values, rng)}"
        results.append(accepted(lambda: load(tmp_path / "run.toml", [override])))  # noqa: B023
    assert 0 < sum(results) < len(results)


@pytest.mark.parametrize("files", [1, 2])
def test_a_models_parameters_are_read_or_refused(tmp_path: Path, files: int) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    test_weights.write(whole, files, test_weights.tensors())
    parameters = test_weights.PARAMETERS

    def read(folder: Path) -> None:
        with HuggingFaceWeights(folder, parameters) as weights:
            weights.check()
            for name, shape in parameters.shapes.items():
                assert len(weights.read(name, 0, shape.numel())) == shape.numel()

    results = [accepted(lambda: read(folder)) for folder, _ in Damaged(whole, tmp_path, 17)]  # noqa: B023
    assert 0 < sum(results) < len(results)


def test_a_profile_is_read_or_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "profile.json").write_text(made_up_profile({"<1>": 200, "<tp2>": 500}).to_json() + "\n")
    results = [
        accepted(lambda: load_profile(path).to_json())  # noqa: B023
        for _, path in Damaged(whole, tmp_path, 18)
    ]
    assert 0 < sum(results) < len(results)


def test_measurements_are_continued_or_refused(tmp_path: Path) -> None:
    conditions = conditions_of(workload(), ranks=2)
    whole = tmp_path / "whole"
    whole.mkdir()
    file = ObservationFile(whole / "m.jsonl", conditions)
    file.append([Observation("<pp2>", (64, 3), (Timing(1.0, 2.0), Timing(3.0, 4.5)))] * 3)
    results = [
        accepted(lambda: ObservationFile(path, conditions))  # noqa: B023
        for _, path in Damaged(whole, tmp_path, 19)
    ]
    assert 0 < sum(results) < len(results)
