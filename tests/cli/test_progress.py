import pytest

from hydraulis.cli.progress import Progress


def test_silent_for_two_seconds_and_between_lines(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([100.0, 101.9, 102.1, 103.9, 104.2])
    say = Progress(clock=lambda: next(times))
    for line in ["too early", "first", "too soon", "second"]:
        say(line)
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "first\nsecond\n")
