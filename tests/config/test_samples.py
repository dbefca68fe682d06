"""The section `samples`."""

from pathlib import Path

from config.run_file import write
from helpers import refused
from hydraulis.config.run import load


def test_it_is_off_by_default_and_by_zero(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load(path).samples.every is None
    assert load(path, ["samples.every=5", "samples.prompts=['a']"]).samples.every == 5
    assert load(path, ["samples.every=5", "samples.prompts=['a']", "samples.every=0"]).samples.every is None


def test_samples_need_prompts(tmp_path: Path) -> None:
    with refused("config_value", "samples.prompts = []"):
        load(write(tmp_path), ["samples.every=5"])
