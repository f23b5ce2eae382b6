"""What the engine saw, one JSON object a line, for tests and for people: no prompts, only their length."""

from __future__ import annotations

import json
import time
from typing import TextIO


class Journal:
    """Appends to a file at once, so that another process can follow it; without a path it writes nothing."""

    def __init__(self, path: str = "") -> None:
        self._file: TextIO | None = open(path, "a", buffering=1, encoding="utf-8") if path else None  # noqa: SIM115

    def write(self, event: str, **what: object) -> None:
        """One line: the time, the event and its fields."""
        if self._file is not None:
            self._file.write(json.dumps({"t": round(time.time(), 4), "event": event, **what}) + "\n")

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()
            self._file = None
