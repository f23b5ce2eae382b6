"""The archive in which an engine hands out its tokenizer: checked, bounded, and only the files that matter."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import PurePosixPath

_WANTED = frozenset(
    {
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
    }
)
_DECIDING = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json")


class BadTokenizer(ValueError):
    """The archive is damaged, or not what it is said to be."""


def unpack(packed: bytes, digest: str, limit: int) -> dict[str, bytes]:
    """File name to content. digest: sha256 (hex) of the whole, empty if it was not sent; limit: bytes unpacked."""
    if digest and hashlib.sha256(packed).hexdigest() != digest.lower():
        raise BadTokenizer("its checksum is wrong")
    found: dict[str, bytes] = {}
    room = limit
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            for entry in archive.infolist():
                name = PurePosixPath(entry.filename).name
                if entry.is_dir() or name not in _WANTED or name in found:
                    continue
                with archive.open(entry) as file:
                    content = file.read(room + 1)  # what the header says of the size is not to be trusted
                room -= len(content)
                if room < 0:
                    raise BadTokenizer(f"it unpacks to more than {limit} bytes")
                found[name] = content
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise BadTokenizer("it is no readable zip archive") from error
    return found


def digest(files: Mapping[str, bytes]) -> str | None:
    """sha256 (hex) over what decides ids; None where there is no such file. Equal for archives packed differently."""
    names = [name for name in _DECIDING if name in files]
    if not names:
        return None
    total = hashlib.sha256()
    for name in names:
        total.update(f"{name}\0{len(files[name])}\0".encode())
        total.update(files[name])
    return total.hexdigest()
