"""From a configuration to sequences, over every kind of file."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.small_tokenizer import write_tokenizer
from data.sources.test_token_files import write_megatron
from helpers import refused
from hydraulis.config.data import DataConfig
from hydraulis.config.layered.table import from_table
from hydraulis.data.dataset import Dataset
from hydraulis.data.open import Datasets, held_out_documents, open_sources
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.data.sources.prepare import prepare_sources
from hydraulis.data.tokenization.tokenizer import load_tokenizer
from hydraulis.data.tokens import MaskedTokens, SequenceTokens, plain_tokens
from hydraulis.errors import InvalidInputError

TEXTS = ["the fox", "over the lazy dog", "then", "the brown fox jumps"]
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the fox"}]
IDS = [[1, 2, 3], [4, 5, 6]]


def config_of(folder: Path, *sources: dict[str, Any], **settings: Any) -> DataConfig:
    table = {"sources": list(sources), "tokens_per_batch": 8, "index_processes": 1} | settings
    return from_table(DataConfig, table | {"index_directory": str(folder / "index")}, "data")


def load(config: DataConfig) -> Datasets:
    return open_sources(config, prepare_sources(config))


def all_tokens(dataset: Dataset) -> list[list[int]]:
    return [plain_tokens(dataset.read(index)).tolist() for index in range(len(dataset))]


def write_lines(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def text_lines(folder: Path) -> str:
    return write_lines(folder / "t.jsonl", [{"text": text} for text in TEXTS])


def text_parquet(folder: Path) -> str:
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), folder / "t.parquet")
    return str(folder / "t.parquet")


def text_folder(folder: Path) -> str:
    table = pyarrow.table({"text": TEXTS})
    with pyarrow.ipc.new_stream(folder / "data-0.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    return str(folder)


@pytest.mark.parametrize("write", [text_lines, text_parquet, text_folder])
def test_text_comes_through_the_tokenizer_from_every_kind_of_file(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer", eos_token="</s>")
    tokenizer = load_tokenizer(str(folder))
    data = load(config_of(tmp_path, {"files": [write(tmp_path)]}, tokenizer=str(folder)))
    eos = tokenizer.token("</s>")
    assert all_tokens(data.train) == [[*tokenizer.encode(text, special=True), eos] for text in TEXTS]
    assert data.held_out is None


def ids_lines(folder: Path) -> str:
    return write_lines(folder / "i.jsonl", [{"input_ids": ids} for ids in IDS])


def ids_parquet(folder: Path) -> str:
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": IDS}), folder / "i.parquet")
    return str(folder / "i.parquet")


def ids_numpy(folder: Path) -> str:
    np.save(folder / "i.npy", np.array(IDS))
    return str(folder / "i.npy")


def ids_megatron(folder: Path) -> str:
    return str(write_megatron(folder, IDS, (0, 1, 2)).with_suffix(".bin"))


@pytest.mark.parametrize("write", [ids_lines, ids_parquet, ids_numpy, ids_megatron])
def test_tokens_are_read_unchanged_from_every_kind_of_file(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    data = load(config_of(tmp_path, {"files": [write(tmp_path)], "format": "tokens"}))
    assert all_tokens(data.train) == IDS
    assert data.train.target_counts.tolist() == [2, 2]


def counted(sequence: SequenceTokens) -> bytes:
    assert isinstance(sequence, MaskedTokens)
    return sequence.tokens[sequence.loss_mask].tobytes()


def test_parts_of_chats_completions_and_labels_are_targets(tmp_path: Path) -> None:
    chat = write_lines(tmp_path / "c.jsonl", [{"messages": TALK}])
    completion = write_lines(tmp_path / "p.jsonl", [{"q": "2 + 2 = ", "a": "4!"}])
    labels = write_lines(tmp_path / "l.jsonl", [{"input_ids": [7, 8, 9], "labels": [-100, -100, 9]}])
    config = config_of(
        tmp_path,
        {"files": [chat], "format": "chat"},
        {"files": [completion], "format": "completion", "fields": ["q", "a"]},
        {"files": [labels], "format": "tokens", "fields": ["input_ids", "labels"]},
        chat_template="chatml",
        eos_token="\n",
    )
    train = load(config).train
    assert [counted(train.read(index)) for index in range(2)] == [b"the fox<|im_end|>\n", b"4!\n"]
    assert train.target_counts.tolist() == [18, 3, 1]
    assert train.source_bounds.tolist() == [0, 1, 2, 3]


def test_records_of_sharegpt_and_alpaca_are_read(tmp_path: Path) -> None:
    shared = [{"from": "human", "value": "the fox"}, {"from": "gpt", "value": "yes"}]
    sharegpt = write_lines(tmp_path / "s.jsonl", [{"conversations": shared}])
    alpaca = [{"instruction": "Add.", "output": "4"}, {"instruction": "Add.", "input": "3", "output": "5"}]
    dolly = [{"instruction": "Who?", "context": "", "response": "He."}]
    config = config_of(
        tmp_path,
        {"files": [sharegpt], "format": "chat", "fields": ["conversations"]},
        {"files": [write_lines(tmp_path / "a.jsonl", alpaca)], "format": "alpaca"},
        {
            "files": [write_lines(tmp_path / "d.jsonl", dolly)],
            "format": "alpaca",
            "fields": ["instruction", "context", "response"],
        },
        chat_template="chatml",
    )
    train = load(config).train
    answers = [b"yes", b"4", b"5", b"He."]
    assert [counted(train.read(n)) for n in range(4)] == [answer + b"<|im_end|>\n" for answer in answers]


def test_streamed_files_give_the_documents_of_lines(tmp_path: Path) -> None:
    rows = [{"text": text, "id": str(n)} for n, text in enumerate(["the fox", "a, b", "c\nd"])]
    lines = write_lines(tmp_path / "t.jsonl", rows)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(Path(lines).read_bytes()))
    (tmp_path / "t.json").write_text(json.dumps(rows))
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(rows)
    names = [lines, *(str(tmp_path / name) for name in ("t.jsonl.gz", "t.json", "t.csv"))]
    train = load(config_of(tmp_path, {"files": names}, index_processes=2)).train
    assert all_tokens(train) == [list(row["text"].encode()) for row in rows] * 4


def test_a_broken_row_of_a_streamed_file_is_skipped_or_refused_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,text\n0,first\n1,a,b\n2,last\n")
    with refused("record_malformed", path, "line 3", "3 fields"):
        load(config_of(tmp_path, {"files": [str(path)]}))
    train = load(config_of(tmp_path, {"files": [str(path)]}, broken_records="skip")).train
    assert all_tokens(train) == [list(b"first"), list(b"last")]
    assert f"file '{path}', line 3" in train.describe_broken()


def test_a_field_that_the_configuration_names_is_in_every_record(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "d.jsonl", [{"instruction": "Who?", "response": "He."}])
    fields = ["instruction", "context", "response"]
    with refused("record_malformed", "no field 'context'"):
        load(
            config_of(
                tmp_path, {"files": [path], "format": "alpaca", "fields": fields}, chat_template="chatml"
            )
        )


def test_files_of_both_kinds_in_one_source_are_one_source(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        {"files": [ids_lines(tmp_path), ids_numpy(tmp_path)], "format": "tokens", "weight": 3},
        {"files": [ids_megatron(tmp_path)], "format": "tokens", "weight": 1},
    )
    train = load(config).train
    assert all_tokens(train) == IDS * 3
    assert train.source_bounds.tolist() == [0, 4, 6]
    seen = np.concatenate([make_sampler(config, train, 0).batch(step).sequences for step in range(40)])
    assert np.mean(seen < 4) == pytest.approx(0.75, abs=0.05)


def test_records_of_tokens_need_the_tokens_format(tmp_path: Path) -> None:
    with refused("config_value", "data.sources[0].format = 'text'"):
        load(config_of(tmp_path, {"files": [ids_numpy(tmp_path)]}))


def test_held_out_documents_are_whole_and_not_trained_on(tmp_path: Path) -> None:
    texts = [f"{n:02d} " + "x" * (n % 7 * 3) for n in range(60)]
    path = write_lines(tmp_path / "t.jsonl", [{"text": text} for text in texts])
    data = load(config_of(tmp_path, {"files": [path]}, held_out=0.2, max_tokens=8))
    assert data.held_out is not None
    halves = [[bytes(tokens).decode() for tokens in all_tokens(half)] for half in (data.train, data.held_out)]
    assert sorted(halves[0] + halves[1]) == sorted(
        text[first : first + 8] for text in texts for first in range(0, len(text), 8) if len(text[first:]) > 1
    )
    firsts = [{text[:2] for text in half if text[0].isdigit()} for half in halves]
    assert len(firsts[1]) == 12
    assert firsts[0] & firsts[1] == set()
    assert data.train.fingerprint != data.held_out.fingerprint
    facts = data.train.describe()
    assert (facts["documents"], facts["held_out"]) == (48, 12)


@pytest.mark.parametrize("rows", [1, 2])
def test_the_held_out_share_is_that_of_a_source_of_many_files(tmp_path: Path, rows: int) -> None:
    files = [str(tmp_path / f"{number}.npy") for number in range(40)]
    for number, file in enumerate(files):
        np.save(file, np.full((rows, 3), number))
    data = load(config_of(tmp_path, {"files": files, "format": "tokens"}, held_out=0.1))
    assert data.held_out is not None
    assert (len(data.train), len(data.held_out)) == (36 * rows, 4 * rows)
    tokens = all_tokens(data.train) + all_tokens(data.held_out)
    assert sorted(tokens) == [[number] * 3 for number in range(40) for _ in range(rows)]
    assert data.train.source_bounds.tolist() == [0, 36 * rows]


def test_several_files_of_a_source_are_divided_like_one(tmp_path: Path) -> None:
    documents = np.arange(60).reshape(20, 3)
    for name, rows in (("one", slice(None)), ("first", slice(9)), ("second", slice(9, None))):
        np.save(tmp_path / f"{name}.npy", documents[rows])
    halves = []
    for names in (["one"], ["first", "second"]):
        files = [str(tmp_path / f"{name}.npy") for name in names]
        data = load(config_of(tmp_path, {"files": files, "format": "tokens"}, held_out=0.3))
        halves.append([all_tokens(one) for one in data.both])
    assert halves[0] == halves[1]


def test_validation_has_files_of_its_own(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "t.jsonl", [{"text": text} for text in TEXTS])
    other = write_lines(tmp_path / "v.jsonl", [{"text": "fox"}, {"text": "a fox that is longer"}])
    validation = [{"files": [other]}, {"files": [ids_numpy(tmp_path)], "format": "tokens"}]
    data = load(config_of(tmp_path, {"files": [train]}, validation=validation))
    assert data.held_out is not None
    assert all_tokens(data.train) == [list(text.encode()) for text in TEXTS]
    assert all_tokens(data.held_out) == [list(b"fox"), list(b"a fox that is longer"), *IDS]
    assert data.held_out.source_bounds.tolist() == [0, 2, 4]
    alone = load(config_of(tmp_path, {"files": [train]}))
    assert (alone.held_out, alone.train.fingerprint) == (None, data.train.fingerprint)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"validation": [{"files": ["none.jsonl"]}]}, ["data.validation[0].files", "none.jsonl"]),
        ({"validation": [{"files": ["x.jsonl"], "weight": 0}]}, ["data.validation[0].weight"]),
        (
            {"validation": [{"files": ["x.jsonl"]}], "held_out": 0.1},
            ["data.held_out = 0.1", "data.validation"],
        ),
        ({"validation": [{"files": ["x"], "weight": 1}, {"files": ["y"]}]}, ["data.validation[1].weight"]),
    ],
)
def test_validation_is_refused_by_its_own_name(
    tmp_path: Path, settings: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load(config_of(tmp_path, {"files": [text_lines(tmp_path)]}, **settings))
    assert [name for name in names if name not in str(refusal.value)] == []


def test_validation_needs_files_to_train_on(tmp_path: Path) -> None:
    with refused("config_value", "data.validation", "data.sources"):
        config_of(tmp_path, validation=[{"files": [text_lines(tmp_path)]}])


def test_tokens_of_validation_are_within_the_vocabulary(tmp_path: Path) -> None:
    np.save(tmp_path / "large.npy", np.array([[1, 500]]))
    validation = [{"files": [str(tmp_path / "large.npy")], "format": "tokens"}]
    data = load(config_of(tmp_path, {"files": [text_lines(tmp_path)]}, validation=validation))
    data.train.check_vocabulary(300)
    with refused("token_out_of_range", "data.validation[0]", "500"):
        data.check_vocabulary(300)


def test_a_source_of_one_document_is_not_divided_and_a_share_without_documents_is_refused(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "one.npy", np.arange(9))
    one = {"files": [str(tmp_path / "one.npy")], "format": "tokens"}
    with refused("corpus_empty", "data.held_out = 0.5", "add documents"):
        load(config_of(tmp_path, one, held_out=0.5))
    data = load(config_of(tmp_path, one, {"files": [ids_lines(tmp_path)], "format": "tokens"}, held_out=0.5))
    assert data.held_out is not None
    assert len(data.train) == 2
    assert all_tokens(data.held_out)[0] in IDS


def test_cut_and_omitted_documents_are_counted_and_change_the_fingerprint(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [{"text": text} for text in ["abcdefgh", "a", "", "abc"]])
    facts = {}
    for too_long in ("split", "truncate"):
        train = load(config_of(tmp_path, {"files": [path]}, max_tokens=3, too_long=too_long)).train
        facts[too_long] = train.describe()
    split, truncated = facts["split"], facts["truncate"]
    assert (split["sequences"], split["tokens"], split["targets"]) == (4, 11, 7)
    assert (truncated["sequences"], truncated["tokens"], truncated["lost_tokens"]) == (2, 6, 5)
    for one in facts.values():
        assert one["documents"] == 2
        assert one["too_long"] == 1
        assert one["documents_without_target"] == 2
        assert (one["longest"], one["sources"]) == (3, 1)
    assert split["fingerprint"] != truncated["fingerprint"]


def test_a_source_that_trains_nothing_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "ones.npy", np.ones((3, 1), dtype=int))
    config = config_of(
        tmp_path,
        {"files": [ids_lines(tmp_path)], "format": "tokens"},
        {"files": [str(tmp_path / "ones.npy")], "format": "tokens"},
    )
    with refused("corpus_empty", "data.sources[1]", "3 documents"):
        load(config)


def test_a_file_without_a_sequence_in_a_source_with_sequences_is_left_out(tmp_path: Path) -> None:
    np.save(tmp_path / "ones.npy", np.ones((3, 1), dtype=int))
    files = [str(tmp_path / "ones.npy"), ids_numpy(tmp_path)]
    train = load(config_of(tmp_path, {"files": files, "format": "tokens"})).train
    assert all_tokens(train) == IDS
    assert train.describe()["without_target"] == 3


def test_tokens_beyond_the_vocabulary_are_refused_before_training(tmp_path: Path) -> None:
    train = load(config_of(tmp_path, {"files": [ids_lines(tmp_path)], "format": "tokens"})).train
    train.check_vocabulary(7)
    with refused("token_out_of_range", "data.sources[0]", "token 6", "5"):
        train.check_vocabulary(6)


@pytest.mark.parametrize("token", [70_000, -7])
def test_a_token_of_an_array_beyond_the_vocabulary_is_named_with_its_position(
    tmp_path: Path, token: int
) -> None:
    files = [str(tmp_path / name) for name in ("first.npy", "second.npy")]
    for file in files:
        np.save(file, np.ones((20, 4), dtype=np.int32))
    last = files[-1]
    records = write_lines(tmp_path / "records.jsonl", [{"input_ids": [1, 1]}])
    other = write_lines(tmp_path / "other.jsonl", [{"input_ids": [1, 1]}])
    files[:0] = [records, other]
    train = load(config_of(tmp_path, {"files": files, "format": "tokens"})).train
    train.check_vocabulary(2)
    array = np.ones((20, 4), dtype=np.int32)
    array[17, 3] = token
    np.save(last, array)
    wrong = load(config_of(tmp_path, {"files": files, "format": "tokens"})).train
    with refused("token_out_of_range", "document 17", last, "data.sources[0]", f"token {token},"):
        wrong.check_vocabulary(2)


def test_an_index_outside_the_sequences_is_refused(tmp_path: Path) -> None:
    train = load(config_of(tmp_path, {"files": [ids_lines(tmp_path)], "format": "tokens"})).train
    for index in (-1, 2):
        with pytest.raises(IndexError, match=rf"{index}\b.*\b2\b"):
            train.read(index)


@given(st.integers(2, 200), st.floats(0.001, 0.999), st.integers(0, 2**32), st.integers(0, 9))
def test_every_document_is_either_trained_on_or_held_out(
    num_documents: int, share: float, seed: int, source: int
) -> None:
    trained, kept = held_out_documents(num_documents, share, seed, source)
    assert sorted([*trained, *kept]) == list(range(num_documents))
    assert (np.diff(trained) > 0).all()
    assert (np.diff(kept) > 0).all()
    assert 1 <= len(kept) < num_documents
    assert abs(len(kept) - share * num_documents) <= 1


def test_the_seed_and_the_source_choose_the_held_out_documents() -> None:
    choices = [tuple(held_out_documents(100, 0.1, *which)[1]) for which in ((0, 0), (1, 0), (0, 1), (0, 0))]
    assert choices[0] == choices[3]
    assert len(set(choices)) == 3


def test_a_single_document_is_not_divided() -> None:
    trained, kept = held_out_documents(1, 0.5, 0, 0)
    assert (len(trained), len(kept)) == (1, 0)
