"""Calls in Python beyond the conformance suite's fixtures."""

import ast
import json
import re
import string
import warnings

import pytest
from hypothesis import assume
from hypothesis import given as drawn
from hypothesis import strategies as st

from enginehouse.core.output.families.pythonic import LFM2, PYTHONIC
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, ParserInput, Piece, ToolCall, joined
from tests.unit.core.output.readings import TOOLS, check_cuts, read

OPEN, CLOSE = "<|python_start|>", "<|python_end|>"
PYTHON = Family(tools=PYTHONIC)
ONE, ADDED = ToolCall("look", '{"a":1}'), ToolCall("add", "{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("[look(a=1)]", [ONE]),
        ("\n[ look( a = 1 ) ]", [ONE]),
        ("[look(a=1), add()]", [ONE, ADDED]),
        ("[look(true=1)]", [ToolCall("look", '{"true":1}')]),
        ("[look(a=1),add(),]", [ONE, ADDED]),
        ("[look(a=1)] So.", [ONE, Content(" So.")]),
        (f"{OPEN}[look(a=1)]{CLOSE}", [ONE]),
        (f"{OPEN}\n[look(a=1)]\n{CLOSE}So.", [ONE, Content("So.")]),
        (f"Wait. {OPEN}[look(a=1)]{CLOSE}", [Content("Wait. "), ONE]),
        (f"{OPEN}[look(a=1)]", [ONE]),
        (f"{OPEN}[look(a=1)]{CLOSE}{OPEN}[add()]{CLOSE}", [ONE, ADDED]),
        (f"[look(a='{CLOSE})], [add()')]", [ToolCall("look", f'{{"a":"{CLOSE})], [add()"}}')]),
        # Text that begins with a bracket, or is no call.
        ("[", [Content("[")]),
        ("[]", [Content("[]")]),
        ("[1, 2]", [Content("[1, 2]")]),
        ("[look](a=1)", [Content("[look](a=1)")]),
        ("[other(a=1)]", [Content("[other(a=1)]")]),
        ("look(a=1)", [Content("look(a=1)")]),
        ("So: [look(a=1)]", [Content("So: [look(a=1)]")]),
        ("[look(a=1)", [Content("[look(a=1)")]),
        ("[look(a=1), other()]", [Content("[look(a=1), other()]")]),
        ("[look(a=1); add()]", [Content("[look(a=1); add()]")]),
        (f"{OPEN}print(1){CLOSE}", [Content(f"{OPEN}print(1){CLOSE}")]),
        (OPEN, []),
    ],
)
def test_o5_calls(text: str, expected: list[Piece]) -> None:
    assert list(read(PYTHON, text)) == expected


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1),
        ("-1.5e3", -1500.0),
        ("+1", 1),
        (".5", 0.5),
        ("5.", 5.0),
        ("1_000", 1000),
        ("True", True),
        ("False", False),
        ("None", None),
        ("true", True),
        ("null", None),
        ("''", ""),
        ('""', ""),
        ("'a'", "a"),
        ("'日本 🌸'", "日本 🌸"),
        ("'\"'", '"'),
        ('"\'"', "'"),
        (r"'\''", "'"),
        (r'"\""', '"'),
        (r"'\\'", "\\"),
        (r"'\\\''", "\\'"),
        (r"'\n\t\r\a\b\f\v\0'", "\n\t\r\a\b\f\v\0"),
        (r"'\x41\u00e9\U0001F338\101'", "Aé🌸A"),
        (r"'\ud83c\udf38'", "🌸"),  # no text in Python, but what was meant
        (r"'\d\x4\u12\U00110000 C:\Windows'", "\\d\\x4\\u12\\U00110000 C:\\Windows"),
        ("'a\\\nb'", "ab"),
        ("'a\nb'", "a\nb"),
        ("'''a'b\n\"c\"'''", 'a\'b\n"c"'),
        ('"""def f():\n\treturn {"a": \'\'}\n"""', "def f():\n\treturn {\"a\": ''}\n"),
        ('""""a"\\""""', '"a""'),
        ("[]", []),
        ("[1, 'a', [None], ]", [1, "a", [None]]),
        ("(1, 2)", [1, 2]),
        ("()", []),
        ("(1,)", [1]),
        ("(1)", 1),
        ("([1, 2])", [1, 2]),
        ("('a' 'b'\n\"c\")", "abc"),
        ("'' '' 'a'", "a"),
        ("{'a' 'b': ''}", {"ab": ""}),
        ("{}", {}),
        ("{'a': {'b': [1]}, }", {"a": {"b": [1]}}),
        ("{1: 'a'}", {"1": "a"}),
        ("{'a=b': '(,)'}", {"a=b": "(,)"}),
    ],
)
def test_o5_literals(written: str, value: object) -> None:
    (call,) = read(PYTHON, f"[look(a={written}, b=0)]")
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"a": value, "b": 0}
    call.arguments.encode()


@pytest.mark.parametrize(
    "arguments",
    [
        "1",
        "'a'",
        "a=b",
        "a=1 + 1",
        "a=f()",
        "a=look(b=1)",
        "a=b.c",
        "a=-'b'",
        "a=f'b'",
        "a=1'b'",
        "a='b",
        "a='b' 1",
        "a=()1",
        "a=(,)",
        "a='b'c",
        "a={1, 2}",
        "a={1: 2]",
        "a=[1)",
        "a==1",
        "a=1 b=2",
        "a=",
        "=1",
        ",",
        "*b",
        "**{'a': 1}",
        "a=nan",
        "a=1e999",
        "a=0x1f",
        "a=[i for i in b]",
    ],
)
def test_o5_nothing_but_literals_is_a_call(arguments: str) -> None:
    text = f"[look({arguments})]"
    assert read(PYTHON, text) == (Content(text),)


def test_deep_nesting_is_text_and_no_error() -> None:
    text = f"[look(a={'[' * 100_000}{']' * 100_000})]"
    parser = PYTHON.parser(ParserInput(TOOLS))
    assert joined([*parser.push(text), *parser.finish()]) == (Content(text),)


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@drawn(st.dictionaries(st.text(string.ascii_lowercase + "_", min_size=1), LITERALS, max_size=3))
def test_o5_what_python_writes_is_read_back(values: dict[str, object]) -> None:
    text = ", ".join(f"{name}={value!r}" for name, value in values.items())
    parser = PYTHON.parser(ParserInput(TOOLS))
    pieces = [piece for char in f"[look({text})]" for piece in parser.push(char)] + list(parser.finish())
    (call,) = pieces
    assert isinstance(call, ToolCall), text
    assert json.loads(call.arguments) == values


@drawn(st.text("\\nxuU01'\"a\n{", max_size=12), st.sampled_from(["'", '"', "'''", '"""']))
def test_o5_strings_mean_what_they_mean_to_python(inner: str, quote: str) -> None:
    assume(re.fullmatch(rf"(?:[^\\{quote[0]}]|\\.)*", inner, re.DOTALL))
    try:
        with warnings.catch_warnings(action="ignore"):  # it dislikes escapes that are none
            value = ast.literal_eval(f"{quote}{inner}{quote}")
        value.encode()
    except (SyntaxError, UnicodeEncodeError):
        assume(False)
    parser = PYTHON.parser(ParserInput(TOOLS))
    (call,) = [*parser.push(f"[look(a={quote}{inner}{quote})]"), *parser.finish()]
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"a": value}


@pytest.mark.parametrize("text", [f"Wait.{OPEN}[look(a='b', c=[1]), add()]{CLOSE}So.", "[look(a={'b': 1}), add()]"])
def test_o6_a_limit_at_any_place_leaves_no_mark_and_no_half_call(text: str) -> None:
    check_cuts(PYTHON, text)


@pytest.mark.parametrize(
    ("begun", "said"), [("[1", "[1"), ("[lo", ""), ("[loo(", "[loo("), ("[look(a=1)", ""), ("[a](b)", "[a](b)")]
)
def test_text_that_begins_with_a_bracket_is_not_held_up(begun: str, said: str) -> None:
    pieces = PYTHON.parser(ParserInput(TOOLS)).push(begun)
    assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == said


def test_without_tools_nothing_is_a_call() -> None:
    assert read(PYTHON, f"{OPEN}[look(a=1)]{CLOSE}", tools=()) == (Content(f"{OPEN}[look(a=1)]{CLOSE}"),)


def test_its_marks_are_shown() -> None:
    assert {OPEN, CLOSE} == PYTHON.shown


def test_lfm2_has_marks_of_its_own_and_no_calls_without_them() -> None:
    family = Family(tools=LFM2)
    text = "Wait.<|tool_call_start|>[look(a=1), add()]<|tool_call_end|>So."
    assert read(family, text) == (Content("Wait."), ONE, ADDED, Content("So."))
    assert read(family, "[look(a=1)]") == (Content("[look(a=1)]"),)
    check_cuts(family, text)
