"""All checks of a run: every kind of refusal."""

from pathlib import Path

import pytest

from preflight.checked_run import findings, read

TWO_HEADS = ("model.num_attention_heads=2", "model.num_key_value_heads=2")


# Tens of terabytes of parameters, which are counted but not allocated.
HUGE = ("model.hidden_size=524288", "model.intermediate_size=1048576")


NO_ROOM = ("planner.memory_mib=1", "model.hidden_size=256")


REFUSALS = (
    (["train.frozen=*.absent"], "model", "config_value"),
    (["data.tokenizer=FOLDER/nowhere"], "tokenizer", "tokenizer_invalid"),
    (["model.vocab_size=255"], "tokenizer", "token_out_of_range"),
    (["model.vocab_size=255"], "model", "weights_invalid"),
    (['data.sources=[{files=["FOLDER/*.parquet"]}]'], "data", "file_unreadable"),
    (['data.sources=[{files=["FOLDER/documents.jsonl"], fields=["body"]}]'], "data", "record_malformed"),
    (["planner.strategies=1x<tp8>"], "strategies", "strategy_unplaceable"),
    (["planner.strategies=1x<tp3>"], "strategies", "scheme_model_mismatch"),
    (["planner.strategies=1x<pp4>", "planner.profile="], "strategies", "scheme_model_mismatch"),
    (["planner.strategies=1x<cp4>", "planner.profile=", *TWO_HEADS], "strategies", "scheme_model_mismatch"),
    (["planner.strategies=1x<tp2,pp2>"], "strategies", "scheme_unknown"),
    (["planner.strategies=search", "planner.profile=", *NO_ROOM], "strategies", "no_strategies"),
    (["planner.profile=FOLDER/absent.json"], "profile", "file_unreadable"),
    (["planner.strategies=1x<1,full>"], "strategies", "scheme_unknown"),
    (["planner.profile=", *NO_ROOM], "memory", "scheme_too_large"),
    (["checkpoint.resume=FOLDER/base"], "resume", "checkpoint_missing"),
    (["output.directory=FOLDER/documents.jsonl/run"], "output", "file_unwritable"),
    (["output.directory=.."], "output", "file_unwritable"),
    # Permissions do not restrict root, but this file system is read-only for everyone.
    (["output.directory=/proc/run"], "output", "file_unwritable"),
    ([*HUGE], "output", "file_unwritable"),
    ([f"output.directory=FOLDER/{'long' * 99}/run"], "output", "file_unwritable"),
)


@pytest.mark.parametrize(
    ("overrides", "name", "code"), REFUSALS, ids=[f"{one[1]}-{one[2]}" for one in REFUSALS]
)
def test_a_refusal_is_one_finding_and_other_checks_run(
    made: Path, overrides: list[str], name: str, code: str
) -> None:
    found = findings(read(made, *(one.replace("FOLDER", str(made)) for one in overrides)))
    assert (found[name].status, found[name].code) == ("refused", code), found[name].text


@pytest.mark.parametrize(
    ("override", "first", "others"),
    [
        ("train.frozen=*.absent", "model", ["strategies", "output"]),
        ("data.tokenizer=FOLDER/nowhere", "tokenizer", ["data"]),
    ],
)
def test_a_shared_refusal_is_reported_once(made: Path, override: str, first: str, others: list[str]) -> None:
    found = findings(read(made, override.replace("FOLDER", str(made))))
    assert [name for name, one in found.items() if one.status == "refused"] == [first]
    for name in others:
        assert (found[name].status, found[name].code) == ("later", None)
        assert found[name].text == f"follows from {first}, which is refused"
