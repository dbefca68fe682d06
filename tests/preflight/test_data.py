"""Checks of the data."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from data.small_tokenizer import write_tokenizer
from data.tokenization.reasoning_templates import DROPS_EARLIER_REASONING
from helpers import lacks
from hydraulis.data.open import open_sources
from hydraulis.data.sources.prepare import prepare_sources
from hydraulis.errors import InvalidInputError
from hydraulis.preflight.finding import Finding
from preflight.checked_run import findings, read


def test_data_without_an_index_are_sampled(made: Path) -> None:
    found = findings(read(made))
    assert {name for name, one in found.items() if one.status == "later"} == {"data", "length", "time"}
    assert {one.status for one in found.values()} == {"ok", "later"}
    assert lacks(found["data"].text, "source 0", "1 file", "`hydraulis analyze RUN.toml`") == []
    assert str(made / "base") in found["model"].text
    assert "up to 64 tokens, 96 are admitted" in found["longest"].text
    assert "9,536.743164 MiB" in found["memory"].text
    assert "planner.memory_mib = 6" in found["memory"].text
    small = findings(read(made, "data.tokens_per_batch=63"))["longest"].text
    assert "data.tokens_per_batch = 63" in small
    # Nothing was made.
    assert not (made / "index").exists()
    assert not (made / "runs").exists()


def test_indexed_data_are_counted(made: Path, tmp_path: Path) -> None:
    config = read(made, f"data.index_directory={tmp_path}/index", "data.held_out=0.1")
    prepare_sources(config.data)
    found = findings(config)
    assert {one.status for one in found.values()} == {"ok"}
    assert found["data"].text.startswith("1 source: 54 sequences of ")
    assert found["data"].text.endswith("6 are held out")
    assert "2 epochs are " in found["length"].text
    once = read(made, f"data.index_directory={tmp_path}/index", "train.epochs=1", "data.held_out=0.1")
    assert "; 1 epoch is " in findings(once)["length"].text


def test_validation_is_checked_with_the_sources(made: Path, tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    validation = f'data.validation=[{{files=["{tmp_path}/v.jsonl"]}}]'
    config = read(made, f"data.index_directory={tmp_path}/index", validation)
    text = findings(config)["data"].text
    assert text.startswith("source 0, 1 file: no index yet; validation 0, 1 file: no index yet; ")
    prepare_sources(config.data)
    assert findings(config)["data"].text.endswith(", 2 for validation")
    (tmp_path / "v.jsonl").write_text("no JSON\n")
    assert findings(config)["data"].code == "record_malformed"


def test_records_of_validation_that_are_left_out_are_reported(made: Path, tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text(
        '{"text": "one"}\nno JSON\n{"text": ""}\n{"text": "longer than five"}\n'
    )
    validation = f'data.validation=[{{files=["{tmp_path}/v.jsonl"]}}]'
    settings = ['data.broken_records="skip"', "data.max_tokens=5", 'data.too_long="truncate"']
    config = read(made, f"data.index_directory={tmp_path}/index", validation, *settings)
    prepare_sources(config.data)
    text = findings(config)["data"].text
    assert "data.validation: 1 broken record left out: file " in text
    assert "data.validation: 1 document longer than data.max_tokens, 11 tokens dropped" in text
    assert "data.validation: 1 document without a target left out" in text


@pytest.mark.parametrize("indexed", [False, True])
def test_a_validation_file_that_is_trained_is_a_warning(made: Path, tmp_path: Path, *, indexed: bool) -> None:
    (tmp_path / "link.jsonl").symlink_to(made / "documents.jsonl")
    validation = f'data.validation=[{{files=["{tmp_path}/link.jsonl"]}}]'
    config = read(made, f"data.index_directory={tmp_path}/index", validation)
    if indexed:
        prepare_sources(config.data)
    found = findings(config)["data"]
    assert found.status == "warning"
    assert (
        "is in data.sources[0] and data.validation[0], so evaluation reads documents of training"
        in found.text
    )


def test_broken_records_are_skipped_and_counted_with_that_setting(made: Path, tmp_path: Path) -> None:
    text = (made / "documents.jsonl").read_text()
    (tmp_path / "text.jsonl").write_text(f"no JSON\n{text}")
    sources = f'data.sources=[{{files=["{tmp_path}/text.jsonl"]}}]'
    config = read(made, f"data.index_directory={tmp_path}/index", sources)
    assert findings(config)["data"].code == "record_malformed"
    config = replace(config, data=replace(config.data, broken_records="skip"))
    assert findings(config)["data"].status == "later"
    prepare_sources(config.data)
    found = findings(config)["data"]
    assert (found.status, found.text.rpartition(", ")[2]) == ("ok", "1 broken record left out")
    config = replace(config, data=replace(config.data, broken_records="refuse"))
    assert findings(config)["data"].code == "record_malformed"


def test_batches_that_repeat_the_same_data_are_a_warning(made: Path, tmp_path: Path) -> None:
    config = read(made, f"data.index_directory={tmp_path}/index", "data.tokens_per_batch=5_000_000")
    prepare_sources(config.data)
    for epochs, says in ((2, False), (1_000, True)):
        found = findings(replace(config, train=replace(config.train, epochs=epochs)))["data"]
        assert found.status == ("warning" if says else "ok")
        assert ("; data.tokens_per_batch = 5,000,000: " in found.text) == says
        assert found.text.endswith("or add data") == says


def test_without_an_index_the_settings_that_remain_to_be_compared_are_named(made: Path) -> None:
    late = ["optimizer.warmup_steps=1000", "train.trace_step=999"]
    found = findings(read(made, *late))["length"]
    assert found.status == "later"
    assert found.text.endswith("; compare it with optimizer.warmup_steps = 1,000, train.trace_step = 999")
    # The run ends with its steps at the latest.
    found = findings(read(made, *late, "train.steps=1000"))["length"]
    assert found.status == "later"
    found = findings(read(made, *late, "train.steps=998"))["length"]
    assert found.status == "warning"
    assert "at most 998; optimizer.warmup_steps = 1,000 exceeds them" in found.text
    assert "train.trace_step = 999 exceeds them" in found.text


def test_a_step_to_profile_beyond_the_last_one_is_a_warning(made: Path) -> None:
    found = findings(read(made, "train.steps=9", "train.profile_steps=[2, 11]"))["length"]
    assert found.status == "warning"
    assert "train.profile_steps has 11, which exceeds them" in found.text
    found = findings(read(made, "train.steps=9", "train.profile_steps=[2, 9]"))["length"]
    assert found.status == "later"


def test_the_remaining_work_of_sources_without_an_index_is_reported_once(made: Path) -> None:
    source = f'{{files=["{made}/documents.jsonl"]}}'
    found = findings(read(made, f"data.sources=[{source},{source}]"))["data"]
    assert found.text.count("no index yet") == 2
    assert found.text.count("first records") == 1


@pytest.mark.parametrize(("steps", "epochs"), [(3, None), (3, 2), (None, 2)])
def test_settings_beyond_the_last_step_are_a_warning(
    made: Path, tmp_path: Path, steps: int | None, epochs: int | None
) -> None:
    def looked(warmup: int, traced: int, decay: int = 0) -> Finding:
        late = [f"optimizer.warmup_steps={warmup}", f"train.trace_step={traced}"]
        if decay:
            late += ["optimizer.schedule='wsd'", f"optimizer.decay_steps={decay}"]
        config = read(made, f"data.index_directory={tmp_path}/index", *late)
        prepare_sources(config.data)
        train = replace(config.train, steps=steps, epochs=epochs)
        return findings(replace(config, train=train))["length"]

    look = looked(1000, 1000)
    assert look.status == "warning"
    assert "; optimizer.warmup_steps = 1,000 " in look.text
    assert "; train.trace_step = 1,000 " in look.text
    last = int(look.text.split()[0])
    assert looked(last, last).status == "ok"
    assert f"; train.trace_step = {last + 1} " in looked(last, last + 1).text
    assert looked(1, last, decay=last - 1).text == looked(last, last).text
    overlapping = looked(1, last, decay=last)
    assert overlapping.status == "warning"
    assert f"; optimizer.decay_steps = {last} " in overlapping.text


@pytest.mark.parametrize("files", [1, 40])
def test_files_without_a_record_are_refused_as_the_run_refuses_them(
    made: Path, tmp_path: Path, files: int
) -> None:
    for number in range(files):
        (tmp_path / f"{number:02}.jsonl").write_text("\n" * number)
    names = f'data.sources=[{{files=["{tmp_path}/*.jsonl"]}}]'
    config = read(made, names, f"data.index_directory={tmp_path}/index")
    found = findings(config)["data"]
    assert (found.status, found.code) == ("refused", "corpus_empty")
    with pytest.raises(InvalidInputError) as refusal:
        open_sources(config.data, prepare_sources(config.data))
    assert (refusal.value.code, str(refusal.value)) == (found.code, found.text)
    # This file is not among the sampled ones.
    (tmp_path / f"{min(1, files - 1):02}.jsonl").write_text('{"text": "one"}\n')
    assert findings(config)["data"].status == "later"


def test_a_template_that_omits_earlier_reasoning_is_reported(made: Path, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": talk}))
    (tmp_path / "t.jinja").write_text(DROPS_EARLIER_REASONING)
    chats = f'data.sources=[{{files=["{tmp_path}/c.jsonl"], format="chat"}}]'
    for template, says in ((tmp_path / "t.jinja", True), ("chatml", False)):
        found = findings(read(made, chats, f"data.chat_template={template}"))["tokenizer"]
        assert found.status == "ok"
        assert found.text.endswith("the reasoning of earlier messages out, so it is not trained") == says


def test_a_tokenizer_other_than_the_models_is_a_warning(made: Path, tmp_path: Path) -> None:
    base = shutil.copytree(made / "base", tmp_path / "base")
    assert findings(read(made, f"model.path={base}"))["tokenizer"].text.startswith("bytes: 256 tokens, ")
    (base / "tokenizer.json").write_text("{}")
    found = findings(read(made, f"model.path={base}"))["tokenizer"]
    assert found.status == "warning"
    assert f"{base} has a tokenizer" in found.text
    assert found.text.endswith(f"set data.tokenizer = '{base}'")


def test_the_tokenizer_of_another_model_of_equal_size_is_refused(made: Path, tmp_path: Path) -> None:
    base = write_tokenizer(shutil.copytree(made / "base", tmp_path / "base"))
    other = write_tokenizer(tmp_path / "other")

    def found(tokenizer: Path, *overrides: str) -> Finding:
        config = read(made, f"data.tokenizer={tokenizer}", *overrides)
        model = replace(config.model, vocab_size=400)
        checkpoint = replace(config.checkpoint, weights=str(base))
        return findings(replace(config, model=model, checkpoint=checkpoint))["tokenizer"]

    assert found(base).status == found(other / "tokenizer.json").status == "ok"
    document = json.loads((other / "tokenizer.json").read_text())
    vocab = document["model"]["vocab"]
    (first, second), numbers = list(vocab)[-2:], list(vocab.values())[-2:]
    vocab |= {first: numbers[1], second: numbers[0]}
    (other / "tokenizer.json").write_text(json.dumps(document))
    refusal = found(other)
    assert (refusal.status, refusal.code) == ("refused", "tokenizer_invalid")
    assert f"token {min(numbers)} is " in refusal.text
    assert refusal.text.endswith(f"set data.tokenizer = '{base}'")
    tokens = 'data.sources=[{files=["t.jsonl"], format="tokens"}]'
    assert found(other, tokens).text == "not needed: all sources hold tokens"
    assert found(other, tokens, f'data.validation=[{{files=["{made}/documents.jsonl"]}}]') == refusal
    # A token that the model's tokenizer lacks may have a row of the embedding.
    document["model"]["vocab"] |= {first: numbers[0], second: numbers[1]}
    document["added_tokens"].append(document["added_tokens"][0] | {"id": 399, "content": "<new>"})
    (other / "tokenizer.json").write_text(json.dumps(document))
    warned = found(other)
    assert warned.status == "warning"
    assert "'<new>'" in warned.text


def test_where_no_index_can_be_made_the_data_are_refused(made: Path) -> None:
    # Even root cannot create a folder there.
    finding = findings(read(made, "data.index_directory='/proc/index'"))["data"]
    assert (finding.status, finding.code) == ("refused", "index_damaged")
    assert "'/proc/index'" in finding.text
    assert "data.index_directory" in finding.text
