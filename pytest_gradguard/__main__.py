"""``python -m pytest_gradguard``: the command ``gradguard``."""

import sys

from pytest_gradguard.cli import main

if __name__ == "__main__":
    sys.exit(main())
