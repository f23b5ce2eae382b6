import pytest

from enginehouse.core.output.argument_types import types_of

SELF = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 10}}, "properties": {"a": {"$ref": "#/$defs/a"}}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "string"),
        ({"type": "number"}, "integer number"),
        ({"type": ["integer", "null"]}, "integer null"),
        ({"type": "date"}, None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer null"),
        ({"oneOf": [{"type": "string"}, {"enum": [1]}]}, "string integer"),
        ({"anyOf": [{"type": "integer"}, {}]}, None),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, "integer"),
        ({"type": ["string", "null"], "enum": ["a", "b"]}, "string"),
        ({"enum": [None, True, 1, 1.5, "x", [], {}]}, "null boolean integer number string array object"),
        ({"const": 1}, "integer"),
        ({"type": "integer", "nullable": True}, "integer null"),
        ({"properties": {"x": {}}}, "object"),
        ({"items": {}}, "array"),
        ({"$ref": "#/$defs/Count"}, "integer"),
        ({"$ref": "#/$defs/with~1slash~0"}, "boolean"),
        ({"$ref": "#/nowhere/at/all"}, None),
        ({"$ref": "https://example.com/schema"}, None),
        ({"$ref": 7}, None),
        ({"anyOf": [{"$ref": "#/$defs/Count"}, {"$ref": "#/$defs/Count"}]}, "integer"),
        ({}, None),
        (True, None),
        ("string", None),
    ],
)
def test_types_of(schema: object, expected: str | None) -> None:
    parameters = {
        "properties": {"a": schema},
        "$defs": {"Count": {"type": "integer"}, "with/slash~": {"type": "boolean"}},
    }
    assert types_of(parameters, "a") == (frozenset(expected.split()) if expected is not None else None)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"additionalProperties": {"type": "integer"}}, {"integer"}),
        ({"additionalProperties": False}, None),
        ({"$ref": "#/$defs/p", "$defs": {"p": {"properties": {"a": {"type": "null"}}}}}, {"null"}),
        ({"allOf": [{"properties": {"b": {}}}, {"properties": {"a": {"type": "array"}}}]}, {"array"}),
        ({"properties": []}, None),
        ({"anyOf": {"properties": {"a": {"type": "array"}}}}, None),
        (None, None),
        ([], None),
    ],
)
def test_where_a_property_is_looked_for(parameters: object, expected: set[str] | None) -> None:
    assert types_of(parameters, "a") == expected


def test_a_schema_that_refers_to_itself_is_read_in_bounded_time() -> None:
    assert types_of(SELF, "a") is None
    all_of_itself = {"allOf": [{"$ref": "#/$defs/a"}] * 10 + [{"type": "integer"}]}
    assert types_of({"$defs": {"a": all_of_itself}, "properties": {"a": {"$ref": "#/$defs/a"}}}, "a") == {"integer"}
    nested: object = {"type": "integer"}
    for _ in range(500):
        nested = {"anyOf": [nested]}
    assert types_of({"properties": {"a": nested}}, "a") is None
    around = {"$defs": {"p": {"allOf": [{"$ref": "#/$defs/p"}] * 10}}, "$ref": "#/$defs/p"}
    assert types_of(around, "a") is None
