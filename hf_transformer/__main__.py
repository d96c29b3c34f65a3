"""Runs the command line: python -m hf_transformer."""

import sys

from hf_transformer.commands.cli import main

if __name__ == "__main__":  # worker processes import this module too
    sys.exit(main())
