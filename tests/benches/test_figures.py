"""All figures in one record: each command with its load and its lines."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def figures(folder: Path, *codes: str) -> subprocess.CompletedProcess[str]:
    commands = [shlex.join([sys.executable, "-c", code]) for code in codes]
    return subprocess.run(
        [sys.executable, "-m", "benches.figures", "--record", str(folder), *commands],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_record_has_every_command_with_the_load_and_its_lines(tmp_path: Path) -> None:
    ended = figures(tmp_path, f"print('gap', 0.09)  # {ROOT}/here", "print('ratio', 1.14)")
    assert ended.returncode == 0, ended.stderr
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-figures\.md", path.name)
    text = path.read_text(encoding="utf-8")
    assert len(re.findall(r"^Load average \d+\.\d before, \d+ s of wall time\.$", text, re.MULTILINE)) == 2
    assert "  # here" in text
    assert str(ROOT) not in text
    assert text.index("0.09)  # here") < text.index("\ngap 0.09\n") < text.index("\nratio 1.14\n")
    assert "gap 0.09\nratio 1.14\n" in ended.stdout


def test_a_command_that_fails_leaves_no_record(tmp_path: Path) -> None:
    ended = figures(tmp_path, "print('gap')", "raise SystemExit(3)", "print('never')")
    assert ended.returncode == 3
    assert "never" not in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_make_bench_runs_every_bench_of_the_planner() -> None:
    command = ["make", "--dry-run", "bench", "LENGTHS=own.txt"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for part in ("-m benches.figures --record benches/record", "exhaustive --lengths own.txt", "lookahead"):
        assert part in said, part
    scripts = {f"benches/{name}.py" for name in ("balancing", "packing", "indexing", "scale")}
    assert all(script in said for script in scripts)
