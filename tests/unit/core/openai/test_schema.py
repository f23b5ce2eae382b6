from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai.schema import MAX_DEPTH, MAX_SCHEMAS, check_schema, has_refs, moved
from enginehouse.domain.errors import InvalidRequest

DRAFT = jsonschema.Draft202012Validator
TREE: dict[str, Any] = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "up": {"$ref": "#"}}}},
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "$ref": {"type": "string"}},
}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {},
        TREE,
        {"type": ["string", "null"], "enum": ["a", {"$ref": 5}], "default": {"type": 3}, "const": {"not": 1}},
        {"properties": {"type": {"type": "integer"}, "enum": {"minimum": -0.5, "exclusiveMaximum": 1e9}}},
        {"items": [{"type": "string"}, True], "additionalItems": False},  # draft 7
        {"prefixItems": [{}], "items": False, "uniqueItems": True, "minItems": 2.0},
        {"anyOf": [{"required": ["a"]}, {"dependentRequired": {"a": ["b"]}}], "unknown": [1, {"type": 5}]},
        {"patternProperties": {"^a": {"$ref": "#/definitions/a~1b%20c"}}, "definitions": {"a/b c": {}}},
        {"allOf": [{"title": "x"}, {"$ref": "#/allOf/0"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#"}}}},
        nested(MAX_DEPTH),
    ],
)
def test_what_is_a_schema_is_taken(schema: Any) -> None:
    check_schema(schema, "x")


@pytest.mark.parametrize(
    ("schema", "where", "words"),
    [
        ([], "x", "is a list"),
        (True, "x", "is a boolean"),
        ({"type": "strnig"}, "x.type", "is 'strnig'; it must be one of array"),
        ({"type": []}, "x.type", "is a list"),
        ({"type": ["string", "string"]}, "x.type", "a list"),
        ({"properties": []}, "x.properties", "is a list; it must be an object of schemas"),
        ({"properties": {"a": 5}}, "x.properties.a", "is a number"),
        ({"properties": {"a": {"minimum": "1"}}}, "x.properties.a.minimum", "must be a number"),
        ({"items": {"minItems": -1}}, "x.items.minItems", "is -1; it must be a whole number"),
        ({"items": {"minLength": True}}, "x.items.minLength", "is a boolean"),
        ({"anyOf": []}, "x.anyOf", "at least one schema"),
        ({"oneOf": {}}, "x.oneOf", "is an object"),
        ({"anyOf": [{}, {"required": "a"}]}, "x.anyOf[1].required", "is a string"),
        ({"required": ["a", "a"]}, "x.required", "each once"),
        ({"dependentRequired": {"a": "b"}}, "x.dependentRequired", "lists of strings"),
        ({"multipleOf": 0}, "x.multipleOf", "above 0"),
        ({"pattern": 1}, "x.pattern", "must be a string"),
        ({"enum": "a"}, "x.enum", "must be a list"),
        ({"$ref": 5}, "x.$ref", "must be a string"),
        ({"$ref": "#/$defs/a"}, "x.$ref", "leads nowhere"),
        ({"$ref": "http://example.org/schema"}, "x.$ref", "leads nowhere"),
        ({"$ref": "#/type", "type": "string"}, "x.$ref", "leads nowhere"),
        ({"$ref": "#"}, "x.$ref", "leads back to itself"),
        ({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/not"}}}, "x.$defs.a.$ref", "leads back to itself"),
        ({"items": {"$ref": "#anchor"}}, "x.items.$ref", "leads nowhere"),
        ({"allOf": [{"$ref": "#/allOf/1"}]}, "x.allOf[0].$ref", "leads nowhere"),
        (nested(MAX_DEPTH + 1), "x", "nested more than"),
        ({"anyOf": [{}] * MAX_SCHEMAS}, "x", "more than"),
    ],
)
def test_o8_what_is_none_is_named_with_its_place(schema: Any, where: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "x")
    assert caught.value.param == where
    assert words in caught.value.message
    assert f"'{where}'" in caught.value.message


KEYWORDS = [
    *("type", "required", "enum", "minimum", "maxLength", "pattern", "uniqueItems", "multipleOf", "title", "const"),
    *("properties", "items", "anyOf", "not", "$defs", "dependentRequired", "prefixItems", "additionalProperties"),
]
values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 1.5, "string", "a", "object"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYWORDS), values, max_size=4))
def test_it_judges_as_the_reference_does(schema: dict[str, Any]) -> None:
    try:
        DRAFT.check_schema(schema)
        right = True
    except jsonschema.SchemaError:
        right = False
    try:
        check_schema(schema, "x")
        ours = True
    except InvalidRequest:
        ours = False
    tuples = "'items': [" in repr(schema)  # draft 7, which the newer one does not know
    assert ours == right or (tuples and ours)


def test_references_are_known_and_follow_a_schema_to_its_new_place() -> None:
    assert has_refs(TREE)
    assert not has_refs({"properties": {"$ref": {"type": "string"}}, "enum": [{"$ref": "#"}], "items": True})
    there = moved(TREE, "#/$defs/f")
    assert there["properties"]["root"] == {"$ref": "#/$defs/f/$defs/node"}
    assert there["$defs"]["node"]["properties"] == {
        "next": {"$ref": "#/$defs/f/$defs/node"},
        "up": {"$ref": "#/$defs/f"},
    }
    whole = {"$defs": {"f": there}, "$ref": "#/$defs/f"}
    check_schema(whole, "x")
    for instance, valid in (({"root": {"next": {"up": {}}}}, True), ({"root": {"next": 5}}, False)):
        assert DRAFT(TREE).is_valid(instance) is valid
        assert DRAFT(whole).is_valid(instance) is valid


def test_a_chain_of_references_is_followed_once() -> None:
    asked = 0

    class Counted(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            nonlocal asked
            asked += 1
            return super().__getitem__(name)

    links = 1000
    chain = Counted({"0": {}} | {str(at): {"$ref": f"#/$defs/{at - 1}"} for at in range(1, links)})
    check_schema({"$defs": chain}, "x")
    assert asked <= 2 * links
