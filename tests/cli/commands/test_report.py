"""`hydraulis report`: the page, the pictures, and refusals."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from cli.invocation import assert_refused
from cli.reports import collect_reports, interrupt_at
from helpers import unsearched
from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.main import main
from hydraulis.report.style import Drawing
from report.made_up_run import write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "demo"
    write_run(path, steps=2)
    return path


def test_the_command_writes_page_and_pictures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The content of figures is tested in tests/report; here, their files.
    drawn = {"png": b"\x89PNG", "svg": b'<svg width="9" height="9"></svg>'}
    monkeypatch.setattr(Drawing, "render", lambda _, kind: drawn[kind])
    pictures = tmp_path / "new" / "pictures"
    reports = collect_reports(monkeypatch)
    assert main(["report", str(folder), "--png", str(pictures), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    names = ["data", "lengths", "loss", "training", "strategies", "prediction", "imbalance", "timeline"]
    page = folder / "report.html"
    assert document["files"] == [str(page), *(str(pictures / f"{name}.png") for name in names)]
    assert document["steps"] == 2
    assert {("reading metrics.jsonl", 1, 2), ("reading plans.jsonl", 1, 2)} < set(reports)
    assert reports[-1] == ("writing pictures", 7, 8)
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert main(["report", str(folder), "--png", str(pictures)]) == 0
    assert capsys.readouterr().out == "".join(f"written to {path}\n" for path in document["files"])
    # A link in the run's folder could lead out of it.
    outside = tmp_path / "outside"
    outside.write_text("precious")
    page.unlink()
    page.symlink_to(outside)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"written to {page}\n"
    assert page.is_file()
    assert not page.is_symlink()
    assert outside.read_text() == "precious"
    for name in names:
        assert (pictures / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_may_not_be_searched_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with unsearched(folder):
        for output in ([], ["--output", str(tmp_path / "page.html")]):
            error = assert_refused(capsys, ["report", str(folder), *output], "file_unreadable")
            assert f"'{folder}" in error
            assert "Permission denied" in error


def test_a_folder_whose_name_is_no_utf8_has_a_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Drawing, "render", lambda *_: b'<svg width="9" height="9"></svg>')
    # As Python reads a name with the byte 255.
    odd = tmp_path / "run\udcff"
    shutil.copytree(folder, odd)
    assert main(["report", str(odd)]) == 0
    assert capsys.readouterr().out == f"written to {tmp_path}/run\\udcff/report.html\n"
    assert "<h1>run\\udcff</h1>" in (odd / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("step", ["reading plans.jsonl", "drawing figures"])
def test_an_interrupt_leaves_the_earlier_page_unchanged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text("before")
    interrupt_at(monkeypatch, step)
    assert main(["report", str(folder), "--output", str(page)]) == EXIT_INTERRUPTED
    assert page.read_text() == "before"
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--output", "missing/page.html"], "file_unwritable"),
        (["--output", "/proc/page.html"], "file_unwritable"),
        (["--png", "{folder}/profile.json"], "file_unwritable"),
        (["--png", "{folder}/profile.json/pictures"], "file_unwritable"),
        (["--png", "/proc/pictures"], "file_unwritable"),
        (["--png", "x" * 300], "file_unwritable"),
    ],
)
def test_an_unwritable_file_is_refused_before_the_work(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    code: str,
) -> None:
    monkeypatch.delattr("hydraulis.cli.commands.report.read_run")
    assert_refused(capsys, ["report", str(folder), *(word.format(folder=folder) for word in more)], code)


def test_a_page_is_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--output", "page.pdf"]) == 2
    error = capsys.readouterr().err
    assert [
        part for part in ("[option_invalid]", "--output", "'page.pdf'", ".html") if part not in error
    ] == []


def test_a_dangling_link_is_no_folder_for_pictures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("hydraulis.cli.commands.report.read_run")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    assert main(["report", str(folder), "--png", str(link)]) == 2
    error = capsys.readouterr().err
    assert "[file_unwritable]" in error
    assert f"'{link}'" in error


def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("hydraulis.cli.commands.report.read_run")
    assert main(["report", "/proc/self"]) == 2
    error = capsys.readouterr().err
    assert "[file_unwritable]" in error
    assert "'/proc/self/report.html'" in error


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert f"there is no folder {tmp_path}/absent; name" in capsys.readouterr().err
    assert main(["report", __file__]) == 2
    assert f"{__file__} is no folder; name" in capsys.readouterr().err
    # An exported model has this file.
    (tmp_path / "config.json").touch()
    assert main(["report", str(tmp_path), "--png", str(tmp_path / "pictures")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hydraulis: error [run_unreadable]: '{tmp_path}' is not the folder of a run of ")
    assert "it has no profile.json; name the folder of a run" in said
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_without_matplotlib_the_command_is_refused_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(folder)]) == 2
    assert "error [extra_missing]: " in capsys.readouterr().err
