"""Arguments of an earlier call: an object for most templates, and for some the text that the model once wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class Arguments(dict[str, Any]):
    """Decoded arguments that remember their text: written anew they might not be what an engine has in its cache."""

    __slots__ = ("_text",)  # out of the reach of templates, whose sandbox hides such names

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self._text = text


def written(arguments: Any) -> str:
    """JSON text of arguments: as they came, where that is known."""
    if isinstance(arguments, Arguments):
        return arguments._text
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
