"""`python -m hydraulis`: the `hydraulis` command, for torchrun, which starts ranks by a module's name."""

import sys

from hydraulis.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
