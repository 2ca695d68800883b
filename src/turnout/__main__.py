"""`python -m turnout` is the command line."""

import sys

from turnout.cli import main

if __name__ == "__main__":
    sys.exit(main())
