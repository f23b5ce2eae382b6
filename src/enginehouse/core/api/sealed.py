"""Thinking as a text that means nothing to clients: some keep no other of it, and bring it back with the history.

Where other servers encrypt, this only packs: what is in it was the client's to read anyway.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

_MARK: Final = "plain."


def sealed(text: str) -> str:
    """The thinking, packed."""
    return _MARK + b64encode(text.encode()).decode()


def unsealed(packed: str) -> str | None:
    """What was packed; None: it does not come from here."""
    if not packed.startswith(_MARK):
        return None
    try:
        return b64decode(packed.removeprefix(_MARK), validate=True).decode()
    except ValueError:
        return None
