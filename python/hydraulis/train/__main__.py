"""`python -m hydraulis.train`, as torchrun starts each rank."""

import sys

from hydraulis.cli.exit import EXIT_INTERRUPTED


def _run() -> int:
    try:
        # Only now: loading takes a while, in which it may be interrupted.
        from hydraulis.train.command import main

        return main()
    except KeyboardInterrupt:
        # Nothing had begun, and torchrun says what ended its ranks.
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(_run())
