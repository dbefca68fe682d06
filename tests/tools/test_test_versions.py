"""The script of `make versions`, with a Python that installs nothing and whose tests fail for one version."""

import subprocess
from pathlib import Path

from helpers import ROOT

# It makes environments of itself, and writes down each call; `$0` names the environment.
PYTHON = """#!/bin/sh
echo "$0 $*" >>"$LOG"
case "$*" in
"-m venv"*) for last; do :; done; mkdir -p "$last/bin" "$last/site"; cp "$0" "$last/bin/python" ;;
*sysconfig*) echo "${0%/bin/python}/site" ;;
*pytest*) case "$0" in *9.2*) exit 1 ;; esac ;;
esac
"""


def run(folder: Path, *versions: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [ROOT / "tools/test_versions.sh", folder / "venv", "", *versions],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "LOG": str(folder / "log")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_version_is_tested_and_each_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "site").mkdir()
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    ended = run(tmp_path, "9.1", "9.2", "9.3")
    assert ended.returncode == 1
    assert ended.stderr == "hydraulis: tests fail with torch 9.2\n"
    calls = (tmp_path / "log").read_text()
    for version in ("9.1", "9.2", "9.3"):
        assert f"install --quiet torch=={version}" in calls
        assert f"venv-torch-{version}/bin/python -m pytest" in calls
        main = (tmp_path / f"venv-torch-{version}" / "site" / "main-environment.pth").read_text()
        assert str(tmp_path / "venv" / "site") in main
    # A second time nothing is installed again.
    (tmp_path / "log").unlink()
    assert run(tmp_path, "9.1").returncode == 0
    assert "install" not in (tmp_path / "log").read_text()
