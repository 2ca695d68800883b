"""`python -m turnout` is the command line."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path.pop(0)  # Python searches the current folder first; `main` puts it after the libraries
    from turnout.cli import main

    sys.exit(main())
