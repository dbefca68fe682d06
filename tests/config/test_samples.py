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


def test_there_are_no_more_prompts_than_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    number = load(write(tmp_path)).model.vocab_size
    prompts = [f"samples.prompts={['a'] * (number + 1)}"]
    assert len(load(write(tmp_path), prompts).samples.prompts) == number + 1
    with refused("config_value", f"len(samples.prompts) = {number + 1}", "model.vocab_size"):
        load(write(tmp_path), ["samples.every=5", *prompts])


def test_samples_need_prompts(tmp_path: Path) -> None:
    with refused("config_value", "samples.prompts = []"):
        load(write(tmp_path), ["samples.every=5"])
