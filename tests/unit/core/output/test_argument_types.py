import pytest

from enginehouse.core.output.argument_types import ArgumentTypes, Types

SELF = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 10}}, "properties": {"a": {"$ref": "#/$defs/a"}}}


def types_of(parameters: object, name: str) -> Types | None:
    return ArgumentTypes(parameters).of(name)


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


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_of_a_huge_schema_only_so_much_is_looked_at(word: str) -> None:
    looked = 0

    class Counted(dict[str, object]):
        def get(self, key: str, default: object = None) -> object:
            nonlocal looked
            looked += key == "$ref"
            return super().get(key, default)

    parts = [Counted(type="string")] * 50_000
    wide = {
        "properties": {str(at): {word: parts} for at in range(50)},
        "allOf": [Counted()] * 50_000,
    }
    types = ArgumentTypes(wide)
    for at in range(100):
        types.of(str(at))
    assert looked <= 5000


def test_an_argument_that_is_given_again_is_not_looked_up_again() -> None:
    types = ArgumentTypes({"properties": {"a": {"type": "integer"}}})
    assert [types.of("a") for _ in range(10_000)] == [{"integer"}] * 10_000
