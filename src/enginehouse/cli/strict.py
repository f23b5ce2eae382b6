"""Refuses numbers that the parser would bend: 1.5 where a whole number is meant, numbers that are not finite."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from cyclopts import ArgumentCollection


def bad_numbers(arguments: ArgumentCollection) -> Iterator[str]:
    """A sentence for each, which names the value and where it came from."""
    for argument in arguments:
        hints = (argument.hint, *getattr(argument.hint, "__args__", ()))
        for token in argument.tokens:
            where = token.keyword or argument.name
            if token.source not in ("cli", "env"):
                where = f"{token.source}: {where.strip('[]').lstrip('-')}"
            if int in hints and not re.fullmatch(r"[+-]?\d+", token.value):
                yield f"{where}: {token.value!r} is not a whole number"
            if float in hints and not _finite(token.value):
                yield f"{where}: {token.value!r} is not a number"


def _finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
