"""What a tokenizer's files say: the token of each id, which are special, how ids become text, where answers end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from enginehouse.adapters.tokenizer.errors import TokenizerError

_TOKEN_SUFFIX: Final = "_token"


@dataclass(frozen=True, slots=True)
class Content:
    """tokenizer.json as far as turning ids into text needs it."""

    tokens: list[str | None]
    """By id; None where an id stands for nothing."""
    special: frozenset[int]
    """Ids that are left out of text unless asked for."""
    decoder: Any
    """The `decoder` section, as it stands."""


def read_content(tokenizer_json: bytes) -> Content:
    """Raises TokenizerError for what is no tokenizer.json."""
    try:
        root = msgspec.json.decode(tokenizer_json)
        vocab = root["model"]["vocab"]
        # Unigram models list [token, score]; their ids are the places in the list.
        pairs: Iterable[tuple[str, int]] = (
            vocab.items() if isinstance(vocab, dict) else ((entry[0], at) for at, entry in enumerate(vocab))
        )
        by_id = {number: token for token, number in pairs}
        added = root.get("added_tokens") or []
        for entry in added:
            by_id[entry["id"]] = entry["content"]
        tokens: list[str | None] = [None] * (max(by_id) + 1)
        for number, token in by_id.items():
            tokens[number] = token
        special = frozenset(entry["id"] for entry in added if entry["special"])
        return Content(tokens, special, root.get("decoder"))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise TokenizerError(f"tokenizer.json cannot be read ({type(error).__name__}: {error})") from error


def read_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """A companion file; empty where it is missing. Raises TokenizerError where it is broken."""
    if name not in files:
        return {}
    try:
        content = msgspec.json.decode(files[name])
    except (msgspec.DecodeError, RecursionError) as error:
        raise TokenizerError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{name} is not a JSON object")
    return content


def special_tokens(files: Mapping[str, bytes]) -> dict[str, Any]:
    """`bos_token`, `eos_token` and so on, as templates name them: texts, and a list for `additional_special_tokens`."""
    named: dict[str, Any] = {}
    for source in (read_json(files, "special_tokens_map.json"), read_json(files, "tokenizer_config.json")):
        more = source.get("extra_special_tokens")
        for name, value in [*(more.items() if isinstance(more, dict) else ()), *source.items()]:
            if name.endswith(_TOKEN_SUFFIX) and (text := _text(value)) is not None:
                named[name] = text
            elif name == "additional_special_tokens" and isinstance(value, list):
                named[name] = [text for item in value if (text := _text(item)) is not None]
    return named


def eos_token_ids(files: Mapping[str, bytes], content: Content) -> tuple[int, ...]:
    """Ids that end an answer: of the generation config, else of the model's config; and the tokenizer's own."""
    ids: list[int] = []
    config = read_json(files, "config.json")
    text_config = config.get("text_config")
    for source in (read_json(files, "generation_config.json"), config, text_config if text_config else {}):
        value = source.get("eos_token_id") if isinstance(source, dict) else None
        ids = [item for item in (value if isinstance(value, list) else [value]) if type(item) is int]
        if ids:
            break
    own = special_tokens(files).get("eos_token")
    if own is not None and own in content.tokens:
        ids.append(content.tokens.index(own))
    return tuple(dict.fromkeys(ids))


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
