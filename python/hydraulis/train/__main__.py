"""`python -m hydraulis.train`, as torchrun starts each rank."""

import sys

from hydraulis.cli.exit import EXIT_INTERRUPTED

if __name__ == "__main__":
    try:
        # Only now: loading takes a while, in which it may be interrupted.
        from hydraulis.train.command import main

        code = main()
    except KeyboardInterrupt:
        # Nothing had begun, and torchrun says what ended its ranks.
        code = EXIT_INTERRUPTED
    sys.exit(code)
