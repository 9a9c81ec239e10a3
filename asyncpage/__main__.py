"""`python -m asyncpage`: the same as the `asyncpage` command."""

import sys

from asyncpage.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
