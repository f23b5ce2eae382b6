"""`python -m enginehouse` is `enginehouse`."""

import sys

from enginehouse.cli import main

if __name__ == "__main__":
    sys.exit(main())
