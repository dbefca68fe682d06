"""The comparisons with other frameworks in their short form."""

import re
import sys

from peers import launch


def output(*arguments: str) -> str:
    return launch.output(sys.executable, *arguments)


def test_our_step_keeps_the_cap_near_the_floor_in_every_framework_s_company() -> None:
    said = output(
        "-m",
        "benches.peers.planning",
        "--sequences=512",
        "--caps=32768",
        "--ranks=4",
        "--seeds=2",
        "--runs=1",
    )
    rows = dict(re.findall(r"^\| 512 \| 32,768 \| (.+?) \| (.+) \|$", said, re.MULTILINE))
    assert len(rows) == 9
    per_step, per_micro_batch, _, over, _ = rows["hydraulis"].split(" | ")
    assert float(per_step) <= 1.01
    assert float(per_micro_batch) <= 1.01
    assert over == "0.0%"


def test_the_record_has_both_tables_and_the_versions() -> None:
    tables = {"benches.peers.planning": "| a |\n", "benches.peers.training": "| b |\n"}
    text = output("-c", f"from benches.peers.__main__ import page; print(page({tables!r}))")
    assert re.match(r"# \d{4}-\d\d-\d\d: ", text)
    assert "verl 0." in text
    assert text.index("| a |") < text.index("benches.peers.training") < text.index("| b |")


def test_every_way_trains_the_same_documents() -> None:
    said = output(
        "-m",
        "benches.peers.training",
        "--documents=48",
        "--longest=128",
        "--cap=256",
        "--hidden=16",
        "--epochs=1",
    )
    rows = re.findall(r"^\| (\S.+?) \| (\d+) \| [\d,]+ \|.* \| ([\d,]+) \| \d+ \|$", said, re.MULTILINE)
    assert [name for name, _, _ in rows] == [
        "transformers, padded",
        "transformers, group_by_length",
        "TRL packing",
        "hydraulis",
    ]
    assert all(int(steps) > 2 for _, steps, _ in rows)
    assert all(int(most) <= 256 for _, _, most in rows)
