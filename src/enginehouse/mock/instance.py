"""The least that fits a JSON schema: what a mock engine says when it is held to one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_DEEPEST = 40


class Unsayable(ValueError):
    """A mock engine has no text that fits what the answer is held to."""


def instance_text(schema: str) -> str:
    """JSON text. Raises Unsayable."""
    try:
        read = json.loads(schema)
    except ValueError as error:
        raise Unsayable(f"the JSON schema is not JSON: {error}") from error
    return json.dumps(_instance(read, read, 0), ensure_ascii=False)


def _instance(schema: Any, root: Any, depth: int) -> Any:
    if schema is True or schema == {}:
        return None
    if not isinstance(schema, Mapping):
        raise Unsayable(f"{schema!r} is not a JSON schema that anything fits")
    if depth > _DEEPEST:
        raise Unsayable("the JSON schema goes deeper than a mock engine follows")

    def of(part: Any) -> Any:
        return _instance(part, root, depth + 1)

    if "$ref" in schema:
        return of(_pointed(schema["$ref"], root))
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return of({**{k: v for k, v in schema.items() if k != name}, **schema[name][0]})
    if "allOf" in schema:
        merged = {k: v for k, v in schema.items() if k != "allOf"}
        for part in schema["allOf"]:
            merged |= part
        return of(merged)
    kind = schema.get("type") or ("object" if "properties" in schema else "array" if "items" in schema else "null")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            known = schema.get("properties", {})
            return {name: of(known.get(name, True)) for name in schema.get("required", ())}
        case "array":
            first = [of(part) for part in schema.get("prefixItems", ())]
            missing = schema.get("minItems", 0) - len(first)
            return first + [of(schema.get("items", True)) for _ in range(missing)]
        case "string":
            if "pattern" in schema:
                raise Unsayable("a mock engine makes no text that matches a pattern")
            return "a" * schema.get("minLength", 0)
        case "integer" | "number":
            return max(schema.get("minimum", 0), schema.get("exclusiveMinimum", -1) + 1)
        case "boolean":
            return False
        case "null":
            return None
        case other:
            raise Unsayable(f"{other!r} is no type of JSON")


def _pointed(reference: str, root: Any) -> Any:
    found = root
    try:
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found[part]
    except (LookupError, TypeError):
        raise Unsayable(f"{reference!r} points nowhere in the JSON schema") from None
    return found
