"""Text fitted to a terminal's width."""

import numpy as np
import pytest

from helpers import ROOT
from hydraulis import Cluster, CostProfile, Link, LinkRates, Planner
from hydraulis.cli.tables.comparison_table import comparison_table
from hydraulis.cli.tables.profile_table import profile_table
from hydraulis.cli.terminal.fitted import fitted, terminal_width
from hydraulis.config.planner import SEARCH
from hydraulis.planner import read_lengths
from hydraulis.planner.compare import ComparisonSetup, compare

PROFILE, CLUSTER = CostProfile.preset("llama-32b-a800"), Cluster(64, 8)
LINK = Link.of_profile(PROFILE, LinkRates.parse("25,200,10"))
LENGTHS = read_lengths(ROOT / "examples/lengths.txt")


def plan_text() -> str:
    planner = Planner(PROFILE, CLUSTER, strategies="search", link=LINK)
    return planner.plan(LENGTHS[:300]).explain()


def comparison_text() -> str:
    batches = [np.asarray(LENGTHS[:100]), np.asarray(LENGTHS[100:200])]
    setting = ComparisonSetup(profile=PROFILE, cluster=CLUSTER, batches=batches, link=LINK)
    return comparison_table(compare(setting, ["static", "search"]), PROFILE)


def proposal_text() -> str:
    names = ";".join(f"{count}x<tp4>+{16 - count}x<tp2,pp2>" for count in range(1, 16))
    return f'for hydraulis plan: --strategies "{names}"\n'


TEXTS = {
    "plan": plan_text,
    "comparison": comparison_text,
    "profile": lambda: profile_table(PROFILE, CLUSTER),
    "proposal": proposal_text,
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_texts_of_commands_fit_80_columns_with_every_word(name: str) -> None:
    text = TEXTS[name]()
    assert name == "comparison" or max(map(len, text.splitlines())) > 80
    lines = fitted(text, 80).splitlines()
    assert max(map(len, lines)) <= 80
    # A list is broken between its strategies, which may be read again.
    assert "".join(" ".join(lines).split()) == "".join(text.split())
    assert {word for line in lines for word in line.split()} >= {
        word for word in text.split() if ";" not in word
    }


def test_a_table_keeps_its_lines() -> None:
    text = "scheme      tokens      ms\n <tp2>       1,234     5.6\n"
    assert fitted(text, 20) == "scheme  tokens    ms\n <tp2>   1,234   5.6\n"


def test_the_rest_of_a_line_is_indented_and_a_unit_stays_with_its_number() -> None:
    assert fitted("  a share of 12.5 % it is", 17) == "  a share of\n      12.5 % it\n      is"
    assert fitted("ok    a long text of words", 16, indent=6) == "ok    a long\n      text of\n      words"


def test_a_long_path_is_not_broken() -> None:
    path = "/a/very/long/path/to/a/file.json"
    assert fitted(f"written to {path}\n", 20) == f"written to\n    {path}\n"


def test_a_value_of_a_configuration_stays_behind_its_key() -> None:
    text = f"for a run: planner.strategies = {[*SEARCH, '4x<1>']}"
    assert fitted(text, 36) == "for a run:\n    planner.strategies = ['search',\n    '4x<1>']"


def test_without_a_terminal_nothing_is_changed() -> None:
    text = plan_text()
    assert fitted(text, None) == text


def test_the_width_is_that_of_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "91")
    assert terminal_width() is None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert terminal_width() == 91
