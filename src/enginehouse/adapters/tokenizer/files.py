"""Where a model's tokenizer files are: a folder, the local hub cache, or handed out by an engine. Never the network."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from enginehouse.adapters.tokenizer.errors import TokenizerError
from enginehouse.core.tokenizer_files import NAMES, TEMPLATES

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def find_files(source: str) -> dict[str, bytes]:
    """The tokenizer files of a folder (or of the folder of a tokenizer.json), or of a model id in the local hub cache.

    Raises TokenizerError, which says where it looked.
    """
    path = Path(source).expanduser()
    if path.is_file():
        path = path.parent
    if path.is_dir():
        return _read(path)
    if source.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(source):
        raise TokenizerError(f"{source!r} is no folder here, nor the id of a model")
    return _read(_snapshot(source))


def _read(folder: Path) -> dict[str, bytes]:
    found = {name: (folder / name).read_bytes() for name in NAMES if (folder / name).is_file()}
    for path in sorted((folder / TEMPLATES).glob("*.jinja")):
        found[f"{TEMPLATES}/{path.name}"] = path.read_bytes()
    if "tokenizer.json" not in found:
        others = [name for name in ("tokenizer.model", "vocab.json") if name in found]
        hint = f"; {others[0]} alone is not enough, convert it with the model's own tools" if others else ""
        raise TokenizerError(f"there is no tokenizer.json in {folder}{hint}")
    return found


def hub_cache() -> Path:
    """The folder in which hub downloads are kept, by the variables that the hub's own tools read."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def _snapshot(model_id: str) -> Path:
    """The folder of the revision that `main` stood for when it was downloaded, else of the only one that is there."""
    model = hub_cache() / f"models--{model_id.replace('/', '--')}"
    if not model.is_dir():
        raise TokenizerError(f"{model_id!r} is neither a folder here nor in the hub cache {hub_cache()}")
    main = model / "refs" / "main"
    if main.is_file():
        folder = model / "snapshots" / main.read_text(encoding="utf-8").strip()
        if folder.is_dir():
            return folder
    snapshots = sorted((model / "snapshots").iterdir()) if (model / "snapshots").is_dir() else []
    if len(snapshots) == 1:
        return snapshots[0]
    raise TokenizerError(f"{model_id!r} is in the hub cache with {len(snapshots)} revisions, none of them `main`")
