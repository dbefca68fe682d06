import json
from pathlib import Path

from config.run_file import MINIMAL, write
from helpers import refused
from hydraulis.config.data import DataConfig, SourceConfig
from hydraulis.config.layered.table import from_table
from hydraulis.config.run import RunConfig, load, to_dict


def test_either_tokens_or_sequences_fill_a_batch(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL.replace("tokens_per_batch = 16384", ""))
    with refused("config_value", "data.tokens_per_batch", "data.sequences_per_batch", "absent"):
        load(path)
    assert load(write(tmp_path)).data.batch_tokens == 16384
    both = write(tmp_path, MINIMAL.replace("[train]", "sequences_per_batch = 3\n[train]"))
    with refused("config_value", "16384 and 3"):
        load(both)


def test_sources_are_tables_with_the_fields_of_their_format(tmp_path: Path) -> None:
    sources = '[[data.sources]]\nfiles = ["a.jsonl", "b/*.parquet"]\nformat = "completion"\nweight = 2\n'
    config = load(write(tmp_path, MINIMAL + sources))
    (source,) = config.data.sources
    assert source.files == ("a.jsonl", "b/*.parquet")
    assert source.fields == ("prompt", "completion")
    assert source.weight == 2.0
    assert from_table(RunConfig, json.loads(json.dumps(to_dict(config))), "") == config
    # Bytes need 256 rows, a tokenizer may need fewer.
    assert load(write(tmp_path, MINIMAL + sources), ["model.vocab_size=60"]).model.vocab_size == 60


def test_an_empty_list_of_sources_needs_the_standard_library(tmp_path: Path) -> None:
    with refused("config_value", "data.sources = []", "'stdlib'"):
        load(write(tmp_path), ["data.sources=[]"])
    assert load(write(tmp_path), ["data.sources=[]", "data.source=stdlib"]).data.sources == ()


def test_a_file_goes_into_the_sources(tmp_path: Path) -> None:
    with refused("config_value", "data.source = 'my.jsonl'", "files in data.sources"):
        load(write(tmp_path), ["data.source=my.jsonl"])


def test_text_to_train_or_to_evaluate_on_is_text() -> None:
    text, tokens = SourceConfig(files=("a",)), SourceConfig(files=("b",), format="tokens")
    assert DataConfig(tokens_per_batch=1).holds_text
    assert DataConfig(tokens_per_batch=1, sources=(tokens, text)).holds_text
    assert DataConfig(tokens_per_batch=1, sources=(tokens,), validation=(text,)).holds_text
    assert not DataConfig(tokens_per_batch=1, sources=(tokens,), validation=(tokens,)).holds_text
