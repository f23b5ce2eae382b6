"""What a mock engine says when it is held to a JSON schema fits that schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from enginehouse.mock.instance import Unsayable, instance_text

TOOLS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": "weather"},
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
                        "required": ["city", "unit"],
                    },
                },
                "required": ["name", "parameters"],
            },
        ]
    },
}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (True, None),
        ({}, None),
        ({"type": "object"}, {}),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 0}),
        ({"properties": {"a": {"type": "null"}}, "required": ["a", "b"]}, {"a": None, "b": None}),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2}, [1, 2]),
        ({"type": "array"}, []),
        ({"type": "string", "minLength": 3}, "aaa"),
        ({"type": ["string", "null"]}, ""),
        ({"type": "integer", "minimum": 4}, 4),
        ({"type": "integer", "exclusiveMinimum": 4}, 5),
        ({"type": "number", "maximum": 0}, 0),
        ({"enum": ["ü", 2]}, "ü"),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ""),
        ({"allOf": [{"type": "object"}, {"required": ["a"]}]}, {"a": None}),
        ({"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}, [0]),
        (TOOLS, [{"name": "weather", "parameters": {"city": "", "unit": "C"}}]),
    ],
)
def test_the_least_that_fits(schema: Any, said: Any) -> None:
    found = json.loads(instance_text(json.dumps(schema)))
    assert found == said
    jsonschema.validate(found, schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "not JSON"),
        ("false", "anything fits"),
        ('{"type": "string", "pattern": "a"}', "pattern"),
        ('{"type": "colour"}', "no type"),
        ('{"$ref": "#/$defs/missing"}', "nowhere"),
        ('{"$ref": "#"}', "deeper"),
    ],
)
def test_what_it_has_nothing_for_is_said(schema: str, text: str) -> None:
    with pytest.raises(Unsayable, match=text):
        instance_text(schema)
