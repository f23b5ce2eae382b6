"""What one rank's cache did, in its own words; encodings are made of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """A run of consecutive blocks that is held now."""

    keys: Sequence[bytes]
    parent: bytes | None
    """Key of the block before the first; None: the run begins at position 0."""
    token_ids: Sequence[int]
    lora: str = ""
    """The adapter that they were made with."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that are held no more."""

    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is held any more."""


News = Stored | Removed | Cleared
