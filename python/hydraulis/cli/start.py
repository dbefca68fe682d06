"""Entry points of the processes: `hydraulis`, and `hydraulis.train` as torchrun starts it.

The functions import the commands: an interrupt while these load ends the process as a later one does.
"""

import os
import signal
import sys
from typing import NoReturn

from hydraulis.cli.exit import EXIT_INTERRUPTED, leave
from hydraulis.cli.ranks.report import is_rank
from hydraulis.cli.terminal.output import prepare_streams


def command() -> NoReturn:
    """Run the `hydraulis` command line as the whole process."""
    prepare_streams()
    try:
        if not is_rank():
            # A terminated command restores the terminal and removes unfinished files, as after Ctrl-C. Ranks
            # are terminated by their parent, which reports the reason.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        else:
            hide_torch_warnings()
        from hydraulis.cli.main import main

        code = main()
        if is_rank():
            leave(code)
        sys.exit(code)
    except KeyboardInterrupt:
        sys.stderr.write("hydraulis: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)


def start_training_rank() -> NoReturn:
    """Run one rank of `torchrun -m hydraulis.train` as the whole process."""
    prepare_streams()
    hide_torch_warnings()
    try:
        from hydraulis.cli.commands.train import main

        code = main()
    except KeyboardInterrupt:
        # Before StopRequest took over: no work is lost, and torchrun reports the signal that ended its ranks.
        code = EXIT_INTERRUPTED
    leave(code)


def hide_torch_warnings() -> None:
    """Hide torch's native warnings, before torch is loaded, unless the environment sets their level.

    A store that ends with its process would make each rank print a stack of native frames.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
