"""`python -m hydraulis.train`, as torchrun starts each rank."""

import sys

from hydraulis.train.command import main

if __name__ == "__main__":
    sys.exit(main())
