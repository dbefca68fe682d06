"""`python -m hydraulis.train`, as torchrun starts each rank."""

from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.ranks.leave import leave
from hydraulis.cli.terminal.output import open_missing


def _run() -> int:
    open_missing()
    try:
        # Only now: loading takes a while, in which it may be interrupted.
        from hydraulis.train.command import main

        return main()
    except KeyboardInterrupt:
        # Nothing had begun, and torchrun says what ended its ranks.
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    leave(_run())
