import json

import msgspec
import pytest
from canitoolcall.checks import decode_arguments
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.output.pieces import ParserInput, Tool
from enginehouse.core.output.values import arguments, named_call, object_text, typed_arguments, value_text

ANY = None
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        # A string stays as it stands.
        ("02139", {"string"}, '"02139"'),
        ("true", {"string"}, '"true"'),
        ('{"a": 1}', {"string"}, '"{\\"a\\": 1}"'),
        ("  two  spaces\n", {"string"}, '"  two  spaces\\n"'),
        ("", {"string"}, '""'),
        # Numbers keep the digits that they were written with.
        ("5", {"integer"}, "5"),
        (" 5\n", {"integer"}, "5"),
        ("-0", {"integer"}, "-0"),
        ("5.0", {"integer"}, "5"),
        ("007", {"integer"}, "7"),
        ("+7", {"integer"}, "7"),
        ("12345678901234567890123", {"integer"}, "12345678901234567890123"),
        ("1e20", {"number"}, "1e20"),
        ("0.10", {"number"}, "0.10"),
        ("+.5", {"number"}, "0.5"),
        ("5", {"number", "integer"}, "5"),
        ("123_456", {"integer"}, '"123_456"'),
        ("٣", {"integer"}, '"٣"'),
        # What no JSON number can say stays text.
        ("NaN", {"number"}, '"NaN"'),
        ("Infinity", {"number"}, '"Infinity"'),
        ("1e999", {"number"}, '"1e999"'),
        ("9" * 5000, {"integer"}, f'"{"9" * 5000}"'),
        ("True", {"boolean"}, "true"),
        ("FALSE", {"boolean"}, "false"),
        ("yes", {"boolean"}, '"yes"'),
        ("null", {"null"}, "null"),
        ("None", {"null", "string"}, "null"),
        ("none", {"null", "string"}, '"none"'),
        ('{"a": [1, 2.50]}', {"object"}, '{"a": [1, 2.50]}'),
        ('["a"]', {"array"}, '["a"]'),
        ('{"a": 1, "a": 2}', {"object"}, '{"a": 2}'),
        ('{"a": "x\ny"}', {"object"}, '{"a": "x\\ny"}'),
        ("[1, NaN]", {"array"}, '[1, "NaN"]'),
        ("[1", {"array"}, '"[1"'),
        (DEEP, {"array"}, json.dumps(DEEP)),
        # Unions: a string only where it can be nothing else.
        ("5", {"string", "integer"}, "5"),
        ("5 apples", {"string", "integer"}, '"5 apples"'),
        (" 5 apples", {"string", "integer"}, '" 5 apples"'),
        ("null", {"string", "null"}, "null"),
        ('{"a": 1}', {"string", "object"}, '{"a": 1}'),
        ('{"a": 1}', {"string", "array"}, '"{\\"a\\": 1}"'),
        # Not what was asked for, but what the model meant.
        ("null", {"integer"}, "null"),
        ("3.5", {"integer"}, "3.5"),
        ("[1]", {"object"}, "[1]"),
        # The schema says nothing: JSON, if it is.
        ("5", ANY, "5"),
        ('"5"', ANY, '"5"'),
        ("02139", ANY, '"02139"'),
        ("True", ANY, '"True"'),
        ('{"a": 1}', ANY, '{"a": 1}'),
        ("\ud800", ANY, '"\ufffd"'),
        ('"\\ud800"', ANY, '"\ufffd"'),
    ],
)
def test_value_text(text: str, types: set[str] | None, expected: str) -> None:
    assert value_text(text, frozenset(types) if types is not None else None) == expected


TYPES = st.none() | st.frozensets(
    st.sampled_from(["null", "boolean", "integer", "number", "string", "object", "array"]), max_size=4
)


@given(
    st.text() | st.sampled_from(["NaN", "-Infinity", "1e400", "{'a': 1}", '{"a":1,"a":2}', "\ud83d", '"\\ud800"']),
    TYPES,
)
def test_a_value_is_json_whatever_it_was(text: str, types: frozenset[str] | None) -> None:
    written = value_text(text, types)
    decode_arguments(written)
    written.encode()
    if types == {"string"}:
        assert json.loads(written) == text.replace("\ud83d", "\ufffd")


@given(st.text(), st.text())
def test_an_object_is_json_whatever_the_names_are(name: str, value: str) -> None:
    text = object_text([(name, "1"), (name, value_text(value, frozenset({"string"})))])
    assert decode_arguments(text) == {name: value}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1e-05}', '{"a": 1e-05}'),
        (' {"a": 1} ', '{"a": 1}'),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ('{"a": 1, "b": 2, "a": 3}', '{"a": 3, "b": 2}'),
        ('{"a": NaN, "b": 1e999}', '{"a": "NaN", "b": "1e999"}'),
        (f'{{"a": {"9" * 400}, "b": {"9" * 300}}}', f'{{"a": "{"9" * 400}", "b": {"9" * 300}}}'),
        ('{"a": "tab\there"}', '{"a": "tab\\there"}'),
        ('{"a": "\\ud83c\\udf38 \\u00e9", "b": "\\ud83c"}', '{"a": "🌸 é", "b": "\ufffd"}'),
        ('{"\\udc00": ["\\uDBFF"]}', '{"\ufffd": ["\ufffd"]}'),
        ('{"a": "\\u00e9"}', '{"a": "\\u00e9"}'),
        ("[1]", None),
        ('"text"', None),
        ("", None),
        ('{"a": }', None),
        ('{"a": 1} x', None),
        (DEEP, None),
    ],
)
def test_arguments(text: str, expected: str | None) -> None:
    assert arguments(text) == expected
    if expected is not None:
        msgspec.json.decode(expected)  # which is how we take them back


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "f", "arguments": {"a": 2.50}}', ("f", '{"a": 2.50}')),
        ('{"arguments": {}, "id": 7, "name": "f"}', ("f", "{}")),
        ('{"name": "f", "parameters": {"a": 1}}', ("f", '{"a": 1}')),
        ('{"name": "f"}', ("f", "{}")),
        ('{"name": "f", "arguments": null}', ("f", "{}")),
        ('{"name": "f", "arguments": ""}', ("f", "{}")),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', ("f", '{"a": 1}')),
        ('{"name": "f", "arguments": {"a": "x\ny"}}', ("f", '{"a": "x\\ny"}')),
        ('{"name": "f", "arguments": {"a": NaN}}', ("f", '{"a": "NaN"}')),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', ("f", '{"a": 2}')),
        ('{"name": "f", "arguments": [1]}', None),
        ('{"name": "f", "arguments": "x"}', None),
        ('{"name": "", "arguments": {}}', None),
        ('{"name": 1, "arguments": {}}', None),
        ('{"name": "\\ud800", "arguments": {}}', None),
        ('{"arguments": {}}', None),
        ('["name"]', None),
        ("name", None),
        (DEEP, None),
    ],
)
def test_named_call(text: str, expected: tuple[str, str] | None) -> None:
    assert named_call(text) == expected


def test_typed_arguments_follow_the_schema_of_their_tool() -> None:
    given = ParserInput(
        (
            Tool("other", {"properties": {"a": {"type": "string"}}}),
            Tool("f", {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}),
            Tool("untyped", True),
        )
    )
    texts = [("a", "1"), ("b", "2"), ("new", "3"), ("a", "4")]
    assert typed_arguments(given, "f", texts) == '{"a": 4, "b": "2", "new": 3}'
    assert typed_arguments(given, "untyped", texts) == typed_arguments(given, "unknown", texts)
    assert typed_arguments(given, "f", []) == "{}"
