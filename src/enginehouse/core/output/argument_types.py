"""What types an argument may have by its tool's schema: some formats write values without quotes around strings.

It reads what tells types apart and no more: whether the arguments fit the schema is for the tool to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

Types = frozenset[str]

_ALL: Final = frozenset({"null", "boolean", "integer", "number", "string", "object", "array"})
_DEEPEST: Final = 32
"""Schemas within schemas that are followed. Clients write them, and may refer to themselves."""
_MOST: Final = 5000
"""Schemas that are looked at for all arguments of a call: some milliseconds, on the event loop."""


class ArgumentTypes:
    """The types of one call's arguments. What lies beyond the bounds of a look says nothing."""

    def __init__(self, parameters: object) -> None:
        """parameters: the tool's schema."""
        self._root = parameters
        self._left = _MOST
        self._found: dict[str, Types | None] = {}
        """By the argument's name."""
        self._followed: dict[str, Types | None] = {}
        """By the reference."""

    def of(self, name: str) -> Types | None:
        """The JSON types that the argument may have; None: the schema does not say."""
        if name not in self._found:
            self._found[name] = self._types(self._property(self._root, name, 0, set()), 0)
        return self._found[name]

    def _look(self, schema: object, depth: int) -> Mapping[str, object] | None:
        """The schema, if it is one and may be looked at."""
        self._left -= 1
        return schema if isinstance(schema, Mapping) and depth <= _DEEPEST and self._left >= 0 else None

    def _property(self, schema: object, name: str, depth: int, followed: set[str]) -> object:
        """The schema of a property, also where the object's own schema is in parts or behind a reference."""
        known = self._look(schema, depth)
        if known is None:
            return None
        properties = known.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
        for part in self._parts(known, followed):
            found = self._property(part, name, depth + 1, followed)
            if found is not None:
                return found
            if self._left < 0:
                return None
        return known.get("additionalProperties")

    def _parts(self, schema: Mapping[str, object], followed: set[str]) -> Iterator[object]:
        for word in ("allOf", "anyOf", "oneOf"):
            yield from _list(schema.get(word))
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            yield _target(reference, self._root)

    def _types(self, schema: object, depth: int) -> Types | None:
        known = self._look(schema, depth)
        if known is None:
            return None
        said = [read(known) for read in _SAY]
        said.append(self._referred(known.get("$ref"), depth))
        for word in ("anyOf", "oneOf"):
            said.append(_either(self._types(part, depth + 1) for part in _list(known.get(word))))
        for part in _list(known.get("allOf")):
            said.append(self._types(part, depth + 1))
            if self._left < 0:
                break
        sets = [types for types in said if types is not None]
        if not sets:
            return None
        types = _ALL.intersection(*sets)
        return types | {"null"} if known.get("nullable") is True else types

    def _referred(self, reference: object, depth: int) -> Types | None:
        if not isinstance(reference, str):
            return None
        if reference not in self._followed:
            self._followed[reference] = self._types(_target(reference, self._root), depth + 1)
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
    return frozenset([_NAMES.get(kind, "object") for kind in set(map(type, values))]) or None


def _implied(schema: Mapping[str, object]) -> Types | None:
    if "type" in schema:
        return None
    return frozenset({"object"}) if "properties" in schema else frozenset({"array"}) if "items" in schema else None


_SAY: Final[tuple[Callable[[Mapping[str, object]], Types | None], ...]] = (_declared, _listed, _implied)


_NAMES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}


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
