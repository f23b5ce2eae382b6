"""Prints what a command found; a reader that has seen enough (`| head`) is no reason for a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def say(lines: Iterable[str]) -> int:
    """Print the lines. Returns the exit status: 1 if nobody read them all."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered is written at exit, where it would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
