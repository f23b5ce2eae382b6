"""Which files make a model's tokenizer, and the digest of those that decide ids and text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

NAMES: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
TEMPLATES: Final = "additional_chat_templates"
"""Folder of templates besides the one in chat_template.jinja."""
_DECIDING: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json")


def kept_as(path: PurePosixPath) -> str | None:
    """The name under which a file is kept, wherever the tokenizer's folder lies; None: it is none of a tokenizer's."""
    if path.parent.name == TEMPLATES and path.suffix == ".jinja":
        return f"{TEMPLATES}/{path.name}"
    return path.name if path.name in NAMES else None


def digest(files: Mapping[str, bytes]) -> str | None:
    """sha256 (hex) over what decides ids and text; None where there is no such file.

    Of content alone: equal wherever the files lie and however an engine packs them. The template is not in it.
    """
    total: hashlib._Hash | None = None
    for name in _DECIDING:
        if name in files:
            total = total or hashlib.sha256()
            total.update(f"{name}\0{len(files[name])}\0".encode())
            total.update(files[name])
    return None if total is None else total.hexdigest()
