"""Where the `hydraulis` process begins: whoever ends it early ends it as cleanly as later."""

import signal
import sys
from typing import NoReturn

from hydraulis.cli.exit import EXIT_INTERRUPTED
from hydraulis.cli.ranks.leave import leave
from hydraulis.cli.ranks.rank import is_rank
from hydraulis.cli.terminal.output import open_missing


def command() -> NoReturn:
    """Run the command line as a process of its own."""
    open_missing()
    try:
        if not is_rank():
            # Terminated, a command leaves a whole terminal and no unfinished file, as it does interrupted.
            # Ranks are terminated by what started them, which says why.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        # Only now: loading takes a while, in which it may be interrupted.
        from hydraulis.cli.main import main

        code = main()
        if is_rank():
            leave(code)
        sys.exit(code)
    except KeyboardInterrupt:
        sys.stderr.write("hydraulis: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
