"""Opens a report in a headless browser: does it show what it should, and ask nobody for anything?

`make check-report` runs it. It installs nothing; without a browser it says what it needs and ends with 2.
A page that does not show what it should ends it with 1.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from matplotlib.image import imread

from hydraulis.report.page import report
from hydraulis.report.run import read_run
from hydraulis.report.style import MEASURED, PLANNED

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FIREFOX = ("firefox", "firefox-esr")
NEEDS = f"no browser is on PATH: install one of {', '.join(CHROMIUM + FIREFOX)}, and run it again"
WIDTH, HEIGHT = 1100, 3600
SECONDS = 120


def main(arguments: list[str]) -> int:
    """Make the page of a run and open it; without a run, of a made-up one."""
    parser = argparse.ArgumentParser(description="Open a run's report in a headless browser.")
    parser.add_argument("run", nargs="?", type=Path, help="the folder of a run (default: a made-up one)")
    parser.add_argument("--screenshot", type=Path, metavar="FILE.png", help="keep the picture")
    parsed = parser.parse_args(arguments)
    browser = next((path for name in CHROMIUM + FIREFOX if (path := shutil.which(name))), None)
    if browser is None:
        sys.stderr.write(NEEDS + "\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        page = work / "report.html"
        html, sections, _ = report(read_run(parsed.run or made_up(work / "run")))
        page.write_text(html, encoding="utf-8")
        faults = list(look(browser, page, [section.name for section in sections], work))
        if parsed.screenshot:
            shutil.copy(work / "page.png", parsed.screenshot)
    for fault in faults:
        sys.stderr.write(f"{browser}: {fault}\n")
    if not faults:
        sys.stdout.write(f"{browser}: {len(sections)} figures shown, nothing loaded\n")
    return 1 if faults else 0


def made_up(path: Path) -> Path:
    """Write the run that the tests use."""
    from report.made_up_run import write_run

    write_run(path)
    return path


def look(browser: str, page: Path, names: list[str], work: Path) -> Iterator[str]:
    """Give what is wrong with the page as the browser shows it."""
    picture = work / "page.png"
    if Path(browser).name in FIREFOX:
        options = ["--headless", f"--window-size={WIDTH},{HEIGHT}", f"--profile={work}"]
        run(browser, [*options, f"--screenshot={picture}", page.as_uri()])
    else:
        # Names lead nowhere, so that whatever the page asked for would be an error on the console.
        options = ["--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={work / 'profile'}"]
        options += [f"--window-size={WIDTH},{HEIGHT}", "--host-resolver-rules=MAP * ~NOTFOUND"]
        options += ["--enable-logging=stderr", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        run(browser, [*options, f"--screenshot={picture}", page.as_uri()])
        shown = run(browser, [*options, "--dump-dom", page.as_uri()])
        yield from missing(shown.stdout, names)
        yield from (f"the console says: {line}" for line in re.findall(r".*CONSOLE.*", shown.stderr))
    yield from unpainted(picture)


def run(browser: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the browser once."""
    return subprocess.run([browser, *options], capture_output=True, text=True, timeout=SECONDS, check=False)


def missing(document: str, names: list[str]) -> Iterator[str]:
    """Give the figures that the document does not hold."""
    for name in names:
        section = re.search(rf'<section id="{name}">.*?</section>', document, re.DOTALL)
        if section is None or "<svg" not in section[0] or "<path" not in section[0]:
            yield f"figure {name} is not shown"


def unpainted(picture: Path) -> Iterator[str]:
    """Give the colours of the figures that are nowhere in the picture."""
    if not picture.exists():
        yield "it made no picture"
        return
    pixels = (255 * imread(picture)[..., :3]).round().astype(int)
    for colour in (PLANNED, MEASURED):
        wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        if not (abs(pixels - wanted).max(axis=-1) <= 2).any():
            yield f"nothing in the picture has the colour {colour}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
