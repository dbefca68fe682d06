"""The set-up, with a Python whose pip installs nothing: which index torch comes from, and for how long."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import ROOT

BAD, GOOD = "https://bad.invalid/simple", "https://good.invalid/simple"
# It makes an environment of itself alone, writes down what pip is asked for, and fails for one index.
PYTHON = f"""#!/bin/sh
case "$1 $2" in
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip") echo "$*" >>pip.log; case "$*" in *{BAD}*) exit 1 ;; esac ;;
*) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        "Cargo.toml",
        "Cargo.lock",
        "tools/set_up.sh",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "crates").mkdir()
    (tmp_path / "bin").mkdir()
    rust = "#!/bin/sh\necho rustc 1.999.0\n"
    for name, script in {"python3": PYTHON, "rustc": rust, "cargo": rust, "cc": rust}.items():
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def set_up(project: Path, *options: str) -> tuple[int, list[str], str]:
    """Run it; give the exit code, the indexes that torch was asked of, and what was said."""
    (project / "pip.log").unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("TORCH_INDEX", "PYTHON")}
    path = f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["make", "set-up", *options],
        cwd=project,
        env={**kept, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    asked = (project / "pip.log").read_text().splitlines() if (project / "pip.log").exists() else []
    indexes = [line.split()[-2] for line in asked if line.endswith(" torch")]
    return ended.returncode, indexes, ended.stdout + ended.stderr


def test_a_failed_package_index_is_not_used_again(project: Path) -> None:
    code, indexes, _ = set_up(project, f"TORCH_INDEX={BAD}")
    assert (code != 0, indexes) == (True, [BAD])
    code, indexes, said = set_up(project)
    assert (code, indexes) == (0, []), said
    # Nothing of the environment was lost by that.
    assert "replacing" not in said


def test_a_working_package_index_stays_until_another_is_requested(project: Path) -> None:
    assert set_up(project, f"TORCH_INDEX={GOOD}")[:2] == (0, [GOOD])
    assert "replacing" not in set_up(project)[2]
    (project / "pyproject.toml").touch()
    assert set_up(project)[:2] == (0, [GOOD])
    code, indexes, said = set_up(project, "TORCH_INDEX=")
    assert (code, indexes) == (0, []), said
    assert "replacing" in said
    assert "replacing" not in set_up(project, "TORCH_INDEX=")[2]
    assert "replacing" in set_up(project, f"TORCH_INDEX={GOOD}")[2]
