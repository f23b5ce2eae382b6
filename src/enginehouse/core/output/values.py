"""Arguments as valid JSON text, whatever a model wrote: the client's decoder must never fail on ours."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

import msgspec

from enginehouse.core.output.argument_types import ArgumentTypes
from enginehouse.core.output.pieces import ParserInput

_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_LONGEST_NUMBER: Final = 300
"""Characters. Longer integers are infinite to decoders that know no others than doubles: they stay text."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that not every decoder takes, unless it is one of a pair."""


def arguments(text: str) -> str | None:
    """JSON text of an object from what a model wrote as one; None: it is no object. Kept as written if it can be."""
    reader = _Json()
    try:
        value = reader.decode(text)
        if isinstance(value, str):  # models also write the object as a string
            text, reader = value, _Json()
            value = reader.decode(text)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    return text.strip() if reader.exact and encodable(text) else encode(value)


def named_call(text: str) -> tuple[str, str] | None:
    """(name, arguments) of a call that is written as a JSON object with these; None: it is none."""
    try:
        call = msgspec.json.decode(text, type=_Call)
        name, written = call.name, bytes(call.arguments or call.parameters).decode()  # as it was written
    except (ValueError, RecursionError):
        try:
            value = decode(text)
        except ValueError:
            return None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        name, written = value["name"], encode(value.get("arguments", value.get("parameters")))
    found = "{}" if written in ("", "null", '""') else arguments(written)
    return (name, found) if name and encodable(name) and found is not None else None


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


def typed_arguments(given: ParserInput, tool: str, texts: Iterable[tuple[str, str]]) -> str:
    """JSON text of an object from (name, bare text) pairs: the tool's schema says what a text stands for."""
    schema = next((offered.parameters for offered in given.tools if offered.name == tool), None)
    types = ArgumentTypes(schema)
    return object_text((name, value_text(text, types.of(name))) for name, text in texts)


def object_text(members: Iterable[tuple[str, str]]) -> str:
    """JSON text of an object from names and the JSON texts of values. Of two with one name the last one counts."""
    return "{" + ", ".join(f"{encode(name)}: {value}" for name, value in dict(members).items()) + "}"


def value_text(text: str, types: frozenset[str] | None) -> str:
    """JSON text of a value that was written without quotes around strings. types: what it may be; None: not known.

    What may be a string among others is one only where it can be nothing else: a model writes both the same way.
    """
    bare = text.strip()
    for kind, read in _READERS.items():
        if types is not None and kind in types and (value := read(bare)) is not None:
            return value
    if types is not None and "string" in types:
        return encode(text)
    return _any(bare) or encode(text)  # where types are known: not what was asked for, but what the model meant


def decode(text: str) -> object:
    """What a JSON text says, read generously. Raises ValueError."""
    return _Json().decode(text)


def encode(value: object) -> str:
    """JSON text of a decoded value. Halves of surrogate pairs, which are no text, become U+FFFD."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if encodable(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encodable(text: str) -> bool:
    """It is text, without halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Json:
    """Decodes JSON and more: control characters in strings, NaN (as text), names given twice (the last one counts)."""

    __slots__ = ("exact",)

    def __init__(self) -> None:
        self.exact = True
        """It was what every decoder reads in the same way."""

    def decode(self, text: str) -> object:
        """Raises ValueError."""
        if _SURROGATE.search(text):
            self.exact = False
        try:
            try:
                return self._decode(text, strict=True)
            except ValueError:
                self.exact = False
                return self._decode(text, strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error

    def _decode(self, text: str, *, strict: bool) -> object:
        decoder = json.JSONDecoder(
            strict=strict,
            parse_constant=self._odd,
            parse_float=self._float,
            parse_int=self._int,
            object_pairs_hook=self._members,
        )
        return cast(object, decoder.decode(text))

    def _odd(self, text: str) -> str:
        self.exact = False
        return text

    def _float(self, text: str) -> float | str:
        value = float(text)
        return value if math.isfinite(value) else self._odd(text)

    def _int(self, text: str) -> int | str:
        return int(text) if len(text) <= _LONGEST_NUMBER else self._odd(text)

    def _members(self, pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) != len(pairs):
            self.exact = False
        return value


def _null(text: str) -> str | None:
    return "null" if text in ("null", "None") else None


def _boolean(text: str) -> str | None:
    lower = text.lower()
    return lower if lower in ("true", "false") else None


def _integer(text: str) -> str | None:
    number = _number(text)
    if number is None or "e" in number.lower():
        return None
    whole, _, part = number.partition(".")
    return whole if not part.strip("0") else None


def _number(text: str) -> str | None:
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        return None
    if _JSON_NUMBER.fullmatch(text):
        return text
    return repr(float(text)) if set(text) & set(".eE") else repr(int(text))


def _any(text: str) -> str | None:
    reader = _Json()
    try:
        value = reader.decode(text)
    except ValueError:
        return None
    return text if reader.exact else encode(value)


def _object(text: str) -> str | None:
    return _any(text) if text.startswith("{") else None


def _array(text: str) -> str | None:
    return _any(text) if text.startswith("[") else None


_READERS: Final[dict[str, Callable[[str], str | None]]] = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "object": _object,
    "array": _array,
}
