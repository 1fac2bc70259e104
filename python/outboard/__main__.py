"""The command: becomes the program that the wheel carries."""

from __future__ import annotations

import os
import sys

from ._use import command


def main() -> None:
    try:
        program = command()
    except FileNotFoundError as error:
        sys.exit(f"outboard: {error}")
    os.execv(program, ["outboard", *sys.argv[1:]])


if __name__ == "__main__":
    main()
