import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.small_tokenizer import write_tokenizer
from helpers import refused
from hydraulis.data.tokenization.tokenizer import ByteTokenizer, JsonTokenizer, load_tokenizer
from hydraulis.errors import InvalidInputError


@given(st.text())
def test_bytes_are_those_of_utf8_and_map_to_their_character(text: str) -> None:
    tokens, places = ByteTokenizer().encode_with_places(text)
    assert tokens.tobytes().decode() == text
    assert np.array_equal(tokens, ByteTokenizer().encode(text, special=True))
    assert [text[place] for place in places] == [c for c in text for _ in c.encode()]


def test_a_tokenizer_json_gives_the_tokens_of_its_library(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, bos=True) / "tokenizer.json"))
    assert isinstance(tokenizer, JsonTokenizer)
    plain = tokenizer.encode("the fox", special=False)
    assert tokenizer.encode("the fox", special=True).tolist() == [tokenizer.token("<s>"), *plain]
    assert plain.max() < tokenizer.vocab_size <= 310
    text = "then 火 🚰 the"
    tokens, places = tokenizer.encode_with_places(text)
    assert np.array_equal(tokens, tokenizer.encode(text, special=False))
    # The bytes of one character may be several tokens: all of them are at its place.
    assert (np.diff(places) >= 0).all()
    assert set(places[np.isin(places, [5])]) == {5}
    assert places[0] == 0


def test_a_name_on_the_hub_gets_the_command_that_downloads_it() -> None:
    with refused("tokenizer_invalid", "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"):
        load_tokenizer("Qwen/Qwen3-0.6B")
    with pytest.raises(InvalidInputError) as refusal:
        load_tokenizer("/Qwen/Qwen3-0.6B")
    assert "hf download" not in str(refusal.value)


def test_files_next_to_a_tokenizer_are_read_and_change_its_digest(tmp_path: Path) -> None:
    plain = load_tokenizer(str(write_tokenizer(tmp_path / "plain")))
    assert plain.special.eos == plain.special.chat_template == ""
    written = write_tokenizer(
        tmp_path / "written", eos_token={"content": "</s>"}, bos_token="<s>", chat_template="{{ messages }}"
    )
    tokenizer = load_tokenizer(str(written))
    assert tokenizer.special.eos == "</s>"
    assert tokenizer.special.named == {"eos_token": "</s>", "bos_token": "<s>"}
    assert tokenizer.special.chat_template == "{{ messages }}"
    (written / "chat_template.jinja").write_text("{{ 3 }}")
    beside = load_tokenizer(str(written))
    assert beside.special.chat_template == "{{ 3 }}"
    assert len({plain.fingerprint, tokenizer.fingerprint, beside.fingerprint}) == 3
    named = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}]
    (written / "chat_template.jinja").unlink()
    (written / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_tokenizer(str(written)).special.chat_template == "a"


def test_truncation_stated_in_the_file_is_ignored(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    settings = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    assert len(load_tokenizer(str(folder)).encode("one two three four", special=True)) > 2


def test_files_that_are_no_tokenizer_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with refused("tokenizer_invalid", "tokenizer.json'"):
        load_tokenizer(str(tmp_path))
    with refused("tokenizer_invalid", "missing.json") as refusal:
        load_tokenizer(str(tmp_path / "missing.json"))
    assert "did you mean" not in str(refusal.value)
    with refused("tokenizer_invalid", "'bytes'"):
        load_tokenizer("byte")
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with refused("tokenizer_invalid", "tokenizer_config.json"):
        load_tokenizer(str(tmp_path))


def test_a_token_that_is_not_in_the_vocabulary_is_refused(tmp_path: Path) -> None:
    for tokenizer in (ByteTokenizer(), load_tokenizer(str(write_tokenizer(tmp_path)))):
        with refused("tokenizer_invalid", "'<end>'"):
            tokenizer.token("<end>")
    assert ByteTokenizer().token("\n") == 10


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    for tokenizer in (ByteTokenizer(), load_tokenizer(str(write_tokenizer(tmp_path)))):
        for encode in (lambda text, t=tokenizer: t.encode(text, special=True), tokenizer.encode_with_places):
            with refused("record_malformed", "character 2"):
                encode("ab\ud800")


def test_a_library_that_is_missing_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tokenizer(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with refused("extra_missing", "pip install 'hydraulis[data]'"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", b"[1]"),
        ("tokenizer_config.json", b"5"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer_config.json", b'{"a":' * 100_000),
        ("tokenizer_config.json", b'{"chat_template": 5}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}'),
        ("chat_template.jinja", b"\xff\xfe"),
    ],
)
def test_a_damaged_file_of_a_tokenizer_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / name).write_bytes(content)
    with refused("tokenizer_invalid", tmp_path / name):
        load_tokenizer(str(tmp_path))
