"""What types an argument may have by its tool's schema: some formats write values without quotes around strings.

It reads what tells types apart and no more: whether the arguments fit the schema is for the tool to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

Types = frozenset[str]

_ALL: Final = frozenset({"null", "boolean", "integer", "number", "string", "object", "array"})
_DEEPEST: Final = 16
"""References and unions followed in a schema, which may refer to itself."""


def types_of(parameters: object, name: str) -> Types | None:
    """The JSON types that the argument may have; None: the schema does not say."""
    return _types(_property(parameters, name, parameters, 0), parameters, 0)


def _property(schema: object, name: str, root: object, depth: int) -> object:
    """The schema of a property, also where the object's own schema is behind a reference or in parts."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    parts = [_target(schema["$ref"], root)] if "$ref" in schema else []
    parts += [part for word in ("allOf", "anyOf", "oneOf") for part in _list(schema.get(word))]
    for part in parts:
        found = _property(part, name, root, depth + 1)
        if found is not None:
            return found
    return schema.get("additionalProperties")


def _types(schema: object, root: object, depth: int) -> Types | None:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    said = [found for read in _SAY if (found := read(schema)) is not None]
    if "$ref" in schema:
        said += _known([_types(_target(schema["$ref"], root), root, depth + 1)])
    for word in ("anyOf", "oneOf"):
        parts = [_types(part, root, depth + 1) for part in _list(schema.get(word))]
        known = _known(parts)
        if known and len(known) == len(parts):
            said.append(frozenset[str]().union(*known))
    said += _known([_types(part, root, depth + 1) for part in _list(schema.get("allOf"))])
    if not said:
        return None
    types = _ALL.intersection(*said)
    return types | {"null"} if schema.get("nullable") is True else types


def _known(types: Sequence[Types | None]) -> list[Types]:
    return [found for found in types if found is not None]


def _declared(schema: Mapping[str, object]) -> Types | None:
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {name for name in _list(named) if isinstance(name, str)}
    if "number" in types:
        types.add("integer")
    return frozenset(types) & _ALL or None


def _listed(schema: Mapping[str, object]) -> Types | None:
    values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    return frozenset(_type(value) for value in values) or None


def _implied(schema: Mapping[str, object]) -> Types | None:
    if "type" in schema:
        return None
    return frozenset({"object"}) if "properties" in schema else frozenset({"array"}) if "items" in schema else None


_SAY: Final[tuple[Callable[[Mapping[str, object]], Types | None], ...]] = (_declared, _listed, _implied)


def _type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _target(reference: object, root: object) -> object:
    """What a reference within the schema points at."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    at = root
    for part in reference[1:].split("/")[1:]:
        if not isinstance(at, Mapping):
            return None
        at = at.get(part.replace("~1", "/").replace("~0", "~"))
    return at


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
