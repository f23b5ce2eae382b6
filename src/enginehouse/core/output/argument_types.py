"""What types an argument may have by its tool's schema: some formats write values without quotes around strings.

It reads what tells types apart and no more: whether the arguments fit the schema is for the tool to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

Types = frozenset[str]

_ALL: Final = frozenset({"null", "boolean", "integer", "number", "string", "object", "array"})
_DEEPEST: Final = 32
"""Schemas within schemas that are followed. Clients write them, and may refer to themselves."""


def types_of(parameters: object, name: str) -> Types | None:
    """The JSON types that the argument may have; None: the schema does not say."""
    return _Walk(parameters).types(_Walk(parameters).property(parameters, name, 0), 0)


class _Walk:
    """One look into a schema."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._followed: dict[str, Types | None] = {}

    def property(self, schema: object, name: str, depth: int) -> object:
        """The schema of a property, also where the object's own schema is in parts or behind a reference."""
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return None
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
        parts = [part for word in ("allOf", "anyOf", "oneOf") for part in _list(schema.get(word))]
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._followed:
            self._followed[reference] = None
            parts.append(_target(reference, self._root))
        found = (self.property(part, name, depth + 1) for part in parts)
        return next((part for part in found if part is not None), schema.get("additionalProperties"))

    def types(self, schema: object, depth: int) -> Types | None:
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return None
        said = [read(schema) for read in _SAY]
        said.append(self._referred(schema.get("$ref"), depth))
        for word in ("anyOf", "oneOf"):
            said.append(_either(self.types(part, depth + 1) for part in _list(schema.get(word))))
        said += (self.types(part, depth + 1) for part in _list(schema.get("allOf")))
        known = [types for types in said if types is not None]
        if not known:
            return None
        types = _ALL.intersection(*known)
        return types | {"null"} if schema.get("nullable") is True else types

    def _referred(self, reference: object, depth: int) -> Types | None:
        if not isinstance(reference, str):
            return None
        if reference not in self._followed:
            self._followed[reference] = self.types(_target(reference, self._root), depth + 1)
        return self._followed[reference]


def _either(parts: Iterable[Types | None]) -> Types | None:
    """What any of them allows; None, as soon as one does not say."""
    types: set[str] = set()
    for part in parts:
        if part is None:
            return None
        types |= part
    return frozenset(types) or None


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


def _target(reference: str, root: object) -> object:
    """What a reference within the schema points at."""
    at = root
    for part in reference.split("/")[1:]:
        if not isinstance(at, Mapping):
            return None
        at = at.get(part.replace("~1", "/").replace("~0", "~"))
    return at if reference.startswith("#") else None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
