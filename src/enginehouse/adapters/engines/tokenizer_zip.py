"""The archive in which an engine hands out its tokenizer: checked, bounded, and only the files that matter."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import PurePosixPath

from enginehouse.core.tokenizer_files import kept_as


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
                name = kept_as(PurePosixPath(entry.filename))
                if entry.is_dir() or name is None or name in found:
                    continue
                with archive.open(entry) as file:
                    content = file.read(room + 1)  # what the header says of the size is not to be trusted
                room -= len(content)
                if room < 0:
                    raise BadTokenizer(f"it unpacks to more than {limit} bytes")
                found[name] = content
    except BadTokenizer:
        raise
    except Exception as error:  # zipfile and the four decompressors behind it have many ways to fail
        raise BadTokenizer("it is no readable zip archive") from error
    return found
