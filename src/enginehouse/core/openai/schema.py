"""Whether a client's JSON Schema is one, said with the place where it is not; and such schemas put into others.

Judged by the keywords of draft 2020-12, and draft 7's where those are still written (`definitions`, lists of `items`).
This runs on the event loop for each request, so it is one walk over the schema: a library takes a hundred times longer.
What a keyword forbids, and whether an engine's grammar library can hold it, is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from enginehouse.core.openai.refusals import kind, printable, too_much
from enginehouse.domain.errors import InvalidRequest

MAX_DEPTH: Final = 64
MAX_SCHEMAS: Final = 20_000
"""Schemas inside one schema."""

_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_SCHEMA: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords whose value is a schema."""
_SCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas, at least one."""
_NAMED: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""Keywords whose value is an object of schemas."""


def _count(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value >= 0 and value == int(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _types(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else bool(value) and _names(value) and set(value) <= set(_TYPES)


def _dependent(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_names, value.values()))


_COUNT: Final = (_count, "a whole number from 0 on")
_TEXT: Final = (lambda value: isinstance(value, str), "a string")
_NUMBER: Final = (_number, "a number")
_YES_NO: Final = (lambda value: isinstance(value, bool), "true or false")
_LIST: Final = (lambda value: isinstance(value, list), "a list")
_PLAIN: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "type": (_types, f"one of {', '.join(_TYPES)}, or a list of some of them"),
    "required": (_names, "a list of strings, each once"),
    "dependentRequired": (_dependent, "an object of lists of strings, each once"),
    "enum": _LIST,
    "examples": _LIST,
    "multipleOf": (lambda value: _number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("$ref", "$schema", "$id", "$comment", "$anchor", "$dynamicRef", "$dynamicAnchor"), _TEXT),
    **dict.fromkeys(("title", "description", "pattern", "format"), _TEXT),
    **dict.fromkeys(("contentEncoding", "contentMediaType"), _TEXT),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _YES_NO),
}
"""Keywords whose value is no schema: whether it is right, and what would be."""


def check_schema(schema: Any, where: str) -> None:
    """Raise InvalidRequest that names the place, e.g. `tools[0].function.parameters.properties.a.type`.

    where: the field that holds the schema.
    """
    if not isinstance(schema, dict):
        raise _wrong(where, f"is {kind(schema)}; it must be a JSON Schema, which is an object")
    left = MAX_SCHEMAS
    followed: set[str] = set()
    todo: list[tuple[Any, str, int]] = [(schema, where, 0)]
    while todo:
        inner, place, depth = todo.pop()
        left -= 1
        if left < 0:
            raise too_much(where, f"has more than {MAX_SCHEMAS} schemas in it, which is the limit")
        if depth > MAX_DEPTH:
            raise too_much(where, f"is nested more than {MAX_DEPTH} deep, which is the limit")
        if isinstance(inner, bool):
            continue
        if not isinstance(inner, dict):
            raise _wrong(place, f"is {kind(inner)}; it must be a schema: an object, or true or false")
        for key, value in inner.items():
            if key in _PLAIN:
                right, words = _PLAIN[key]
                if not right(value):
                    got = f"'{printable(value)}'" if key == "type" and isinstance(value, str) else _shown(value)
                    raise _wrong(f"{place}.{key}", f"is {got}; it must be {words}")
        if "$ref" in inner:
            _check_ref(schema, inner["$ref"], f"{place}.$ref", followed)
        todo.extend((found, place + step, depth + 1) for found, step in _inside(inner, place))


def _check_ref(root: Any, ref: str, place: str, followed: set[str]) -> None:
    """followed: the references that are known to end, each followed once."""
    way: dict[str, None] = {}
    while ref not in followed and ref not in way:
        target = _target(root, ref)
        if target is None and not way:
            raise _wrong(place, "leads nowhere; it must be '#', or '#/...' to a place in the same schema")
        way[ref] = None
        further = target.get("$ref") if isinstance(target, dict) else None
        if not isinstance(further, str):
            break
        ref = further
    else:
        if ref in way:
            raise _wrong(place, "leads back to itself, and nothing but references is on the way")
    followed.update(way)


def json_text(value: Any, where: str) -> str:
    """JSON of what came as JSON. Raises InvalidRequest."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:  # what can just be read may be just too deep here
        raise _wrong(where, "is nested too deeply") from None


def _inside(schema: dict[str, Any], place: str) -> Iterator[tuple[Any, str]]:
    """The schemas directly in this one, each with the step that leads to it."""
    for key, value in schema.items():
        if key in _SCHEMAS or (key == "items" and isinstance(value, list)):
            if not isinstance(value, list) or (not value and key != "items"):
                raise _wrong(f"{place}.{key}", f"is {_shown(value)}; it must be a list of at least one schema")
            for at, inner in enumerate(value):
                yield inner, f".{key}[{at}]"
        elif key in _NAMED:
            if not isinstance(value, dict):
                raise _wrong(f"{place}.{key}", f"is {kind(value)}; it must be an object of schemas")
            for name, inner in value.items():
                yield inner, f".{key}.{printable(name)}"
        elif key in _SCHEMA:
            yield value, f".{key}"


def has_refs(schema: dict[str, Any]) -> bool:
    """Whether a schema that was checked refers to parts of itself, and so means something else in another place."""
    todo: list[Any] = [schema]
    while todo:
        inner = todo.pop()
        if isinstance(inner, dict):
            if "$ref" in inner:
                return True
            todo.extend(found for found, _ in _inside(inner, ""))
    return False


def moved(schema: Any, to: str) -> Any:
    """A schema that was checked, with its references right for when it stands at `to` (`#/$defs/NAME`)."""
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            out[key] = to + value[1:]
        elif key in _SCHEMAS or (key == "items" and isinstance(value, list)):
            out[key] = [moved(inner, to) for inner in value]
        elif key in _NAMED:
            out[key] = {name: moved(inner, to) for name, inner in value.items()}
        elif key in _SCHEMA:
            out[key] = moved(value, to)
        else:
            out[key] = value
    return out


def _target(root: Any, ref: str) -> Any:
    """What a reference within the schema stands for; None: nothing of it."""
    if ref == "#":
        return root
    if not ref.startswith("#/"):
        return None
    found = root
    for step in ref[2:].split("/"):
        if "%" in step or "~" in step:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif (
            isinstance(found, list) and step.isascii() and step.isdecimal() and len(step) < 9 and int(step) < len(found)
        ):
            found = found[int(step)]
        else:
            return None
    return found if isinstance(found, dict | bool) else None


def _shown(value: Any) -> str:
    return repr(value) if _number(value) and abs(value) < 1e18 else kind(value)


def _wrong(place: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"'{place}' {problem}", param=place)
