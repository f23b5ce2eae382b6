"""DeepSeek's formats beyond the conformance suite's fixtures."""

import pytest

from enginehouse.core.output.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from enginehouse.core.output.families.deepseek_dsml import DEEPSEEK_DSML
from enginehouse.core.output.families.thinking import THINK
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
from tests.unit.core.output.readings import check_cuts, read

V3, V31, DSML_FAMILY = Family(THINK, DEEPSEEK_V3), Family(THINK, DEEPSEEK_V31), Family(THINK, DEEPSEEK_DSML)
DSML = "｜DSML｜"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
OPEN, SHUT = f"<{DSML}tool_calls>", f"</{DSML}tool_calls>"


def v3(name: str, arguments: str) -> str:
    return f"{CALL}function{SEP}{name}\n```json\n{arguments}\n```{CALL_END}"


def v31(name: str, arguments: str) -> str:
    return f"{CALL}{name}{SEP}{arguments}{CALL_END}"


def parameter(name: str, value: str, attributes: str = ' string="true"') -> str:
    return f'<{DSML}parameter name="{name}"{attributes}>{value}</{DSML}parameter>\n'


def invoke(name: str, inside: str = "") -> str:
    return f'\n<{DSML}invoke name="{name}">\n{inside}</{DSML}invoke>'


ONE = ToolCall("look", '{"a": 1}')
ADDED = ToolCall("add", "{}")
LOOK3, LOOK = v3("look", '{"a": 1}'), v31("look", '{"a": 1}')
ADD3, ADD = v3("add", "{}"), v31("add", "{}")
BRACED = f'{{"a": "}}{CALL_END}{END}"}}'


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        (V3, BEGIN + LOOK3 + END, [ONE]),
        (V3, BEGIN + v3("look", '{\n  "a": {"b": []}\n}') + END, [ToolCall("look", '{\n  "a": {"b": []}\n}')]),
        (V3, f"{BEGIN}{v3('look', '{}')}\n{ADD3}{END}", [ToolCall("look", "{}"), ADDED]),
        (V3, f'{BEGIN}{CALL}function{SEP}look```json{{"a": 1}}```{CALL_END}{END}', [ONE]),
        (V3, f'{BEGIN}{CALL}function{SEP}look\n```json\n{{"a": 1}}{CALL_END}{END}', [ONE]),
        (V31, BEGIN + LOOK + END, [ONE]),
        (V31, BEGIN + v31(" look ", ' {"a": 1} ') + END, [ONE]),
        (V31, BEGIN + v31("look", "") + END, [ToolCall("look", "{}")]),
        (V31, BEGIN + v31("look", '"{\\"a\\": 1}"') + END, [ToolCall("look", '{"a": 1}')]),
        (V31, BEGIN + v31("look", '{"ü": "日本 🌸"}') + END, [ToolCall("look", '{"ü": "日本 🌸"}')]),
        (V31, BEGIN + v31("look", BRACED) + END, [ToolCall("look", BRACED)]),
        (V31, f"Wait. {BEGIN}{LOOK}{END} Done.", [Content("Wait. "), ONE, Content(" Done.")]),
        (V31, BEGIN + LOOK + END + BEGIN + ADD + END, [ONE, ADDED]),
        # Marks that the model forgot.
        (V31, BEGIN + LOOK, [ONE]),
        (V31, f'{BEGIN}{CALL}look{SEP}{{"a": 1}}', [ONE]),
        (V31, f'{BEGIN}{CALL}look{SEP}{{"a": 1}}{END}!', [ONE, Content("!")]),
        (V31, f'{BEGIN}{CALL}look{SEP}{{"a": 1}}{ADD}{END}', [ONE, ADDED]),
        (V31, BEGIN + LOOK + " and so on", [ONE, Content(" and so on")]),
        # What is between calls is for nobody.
        (V31, f"{BEGIN}noise{LOOK}noise{END}", [ONE]),
        (V31, BEGIN + END, []),
        (V31, f"{BEGIN}\n{END}", []),
        (V31, f"{BEGIN}{LOOK}\n{END}", [ONE]),
        (V31, f"{BEGIN}{LOOK}\n", [ONE]),
        # What is no call is text, as the model wrote it.
        (V31, f"{BEGIN}noise{END}", [Content(f"{BEGIN}noise{END}")]),
        (V31, BEGIN + v31("look", "{a}") + END, [Content(BEGIN + v31("look", "{a}") + END)]),
        (V31, BEGIN + v31("look", "[1]") + END, [Content(BEGIN + v31("look", "[1]") + END)]),
        (V31, BEGIN + v31("", "{}") + END, [Content(BEGIN + v31("", "{}") + END)]),
        (V31, BEGIN + v31("look", "{} {}") + END, [Content(BEGIN + v31("look", "{} {}") + END)]),
        (V31, BEGIN + v31("look", "{}X") + END, [Content(BEGIN + v31("look", "{}X") + END)]),
        (V31, BEGIN + v31("look", "{}```") + END, [Content(BEGIN + v31("look", "{}```") + END)]),
        (V31, f"{BEGIN}{CALL}look{CALL_END}{END}", [Content(f"{BEGIN}{CALL}look{CALL_END}{END}")]),
        (V3, BEGIN + v31("look", "{}") + END, [Content(BEGIN + v31("look", "{}") + END)]),
        (V31, BEGIN + LOOK + v31("add", "no") + END, [ONE, Content(v31("add", "no") + END)]),
        (V31, BEGIN + v31("add", "no") + LOOK + END, [Content(BEGIN + v31("add", "no")), ONE]),
        (V31, v31("add", "no") + LOOK, [Content(v31("add", "no")), ONE]),
        (V31, f"{BEGIN}{CALL}look{END}!", [Content(f"{BEGIN}{CALL}look{END}!")]),
        # Thinking before it, ended or not.
        (V31, f"<think>Hm.</think>{BEGIN}{LOOK}{END}", [Reasoning("Hm."), ONE]),
        (V31, f"<think>Hm.{BEGIN}{LOOK}{END}Yes.", [Reasoning("Hm."), ONE, Content("Yes.")]),
        (V31, f"<think>Hm.</think>So.\n{BEGIN}{LOOK}{END}\n", [Reasoning("Hm."), Content("So.\n"), ONE, Content("\n")]),
    ],
)  # fmt: skip
def test_o5_calls_in_a_section(family: Family, text: str, expected: list[Piece]) -> None:
    assert list(read(family, text)) == expected


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ("", "{}"),
        (parameter("a", "x"), '{"a": "x"}'),
        (parameter("a", ""), '{"a": ""}'),
        (parameter("a", ' "x"\\n\n'), '{"a": " \\"x\\"\\\\n\\n"}'),
        (parameter("a", "007"), '{"a": "007"}'),
        (parameter("a", "null"), '{"a": "null"}'),
        (parameter("a", "[1, {}]", ' string="false"'), '{"a": [1, {}]}'),
        (parameter("a", "1e+21", ' string="false"'), '{"a": 1e+21}'),
        (parameter("a", " null ", ' string="false"'), '{"a": null}'),
        (parameter("a", "no JSON", ' string="false"'), '{"a": "no JSON"}'),
        (parameter("a", "1", ""), '{"a": 1}'),
        (parameter("a", "1") + parameter("a", "2"), '{"a": "2"}'),
        (parameter('a "b"', "日本 🌸"), '{"a \\"b\\"": "日本 🌸"}'),
        (parameter("a", f"end </{DSML}parameter> with it"), f'{{"a": "end </{DSML}parameter> with it"}}'),
        (parameter("a", f"</{DSML}invoke>{SHUT}"), f'{{"a": "</{DSML}invoke>{SHUT}"}}'),
        ('{"a": {"b": 1}}\n', '{"a": {"b": 1}}'),
    ],
)
@pytest.mark.parametrize("form", ["function_calls", "tool_calls", " calls"])
def test_o5_markup(inside: str, arguments: str, form: str) -> None:
    text = f"<{DSML}tool_calls>{invoke('look', inside)}\n</{DSML}tool_calls>"
    for old, new in (("tool_calls", form.strip()), (DSML, DSML + " " if form == " calls" else DSML)):
        text, arguments = text.replace(old, new), arguments.replace(old, new)
    assert list(read(DSML_FAMILY, text)) == [ToolCall("look", arguments)]


A = parameter("a", "x")
UNCLOSED = A.removesuffix(f"</{DSML}parameter>")
AX = ToolCall("look", '{"a": "x"}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Wait.\n\n{OPEN}{invoke('look', A)}\n{SHUT}", [Content("Wait."), AX]),
        (f"Wait. {OPEN}{invoke('look', A)}{SHUT}\n\nDone.\n", [Content("Wait."), AX, Content("\n\nDone.\n")]),
        (f"{OPEN}{invoke('look', A)}{invoke('add')}\n{SHUT}", [AX, ADDED]),
        (f'{OPEN}<{DSML}invoke name="add"/>{invoke("look", A)}{SHUT}', [ADDED, AX]),
        (f"{OPEN}{invoke('look', A)}{SHUT}\n{OPEN}{invoke('look', A)}{SHUT}", [AX, AX]),
        (f"Hm.</think>\n\n{OPEN}{invoke('look', A)}\n{SHUT}", [Reasoning("Hm."), AX]),
        (f"Hm.\n\n{OPEN}{invoke('look', A)}\n{SHUT}", [Reasoning("Hm."), AX]),
        (f"Hm.\n</think>\n\nSo.\n\n{OPEN}{invoke('look', A)}\n{SHUT}", [Reasoning("Hm."), Content("So."), AX]),
        # Marks that the model forgot.
        (f"{OPEN}{invoke('look', A)}", [AX]),
        (f'{OPEN}<{DSML}invoke name="look">{A}{SHUT}', [AX]),
        (f'{OPEN}<{DSML}invoke name="look">{A}{invoke("add")}{SHUT}', [AX, ADDED]),
        (f"{OPEN}{invoke('look', UNCLOSED)}{invoke('add')}{SHUT}", [AX, ADDED]),
        (OPEN + SHUT, []),
        # What is no call is text.
        (f"{OPEN}look{SHUT}", [Content(f"{OPEN}look{SHUT}")]),
        (f"{OPEN}{invoke('look', 'a=1')}{SHUT}", [Content(f"{OPEN}{invoke('look', 'a=1')}{SHUT}")]),
        (f"{OPEN}{invoke('', A)}{SHUT}", [Content(f"{OPEN}{invoke('', A)}{SHUT}")]),
        (f'{OPEN}<{DSML}invoke name=""/>{SHUT}', [Content(f'{OPEN}<{DSML}invoke name=""/>{SHUT}')]),
        (f"{OPEN}{invoke('look', 'b' + A)}{SHUT}", [Content(f"{OPEN}{invoke('look', 'b' + A)}{SHUT}")]),
        (f"{OPEN}{invoke('look', A + 'b')}{SHUT}", [Content(f"{OPEN}{invoke('look', A + 'b')}{SHUT}")]),
        (f"{OPEN}{invoke('look', A + '{}')}{SHUT}", [Content(f"{OPEN}{invoke('look', A + '{}')}{SHUT}")]),
        (f'{OPEN}<{DSML}invoke nam="look">{A}{SHUT}', [Content(f'{OPEN}<{DSML}invoke nam="look">{A}{SHUT}')]),
        (f"{OPEN}{invoke('look', A)}{invoke('add', '?')}{SHUT}", [AX, Content(f"{invoke('add', '?')}{SHUT}")]),
        (f"{OPEN}{invoke('add', '?')}{invoke('look', A)}{SHUT}", [Content(f"{OPEN}{invoke('add', '?')}\n"), AX]),
        (f"The mark <{DSML}tools> is none.", [Content(f"The mark <{DSML}tools> is none.")]),
    ],
)
def test_o5_blocks_of_markup(text: str, expected: list[Piece]) -> None:
    prompt = "<think>" if text.startswith("Hm.") else "</think>"
    assert list(read(DSML_FAMILY, text, prompt=prompt)) == expected


@pytest.mark.parametrize(
    ("family", "text", "prompt"),
    [
        (V3, f"Wait.{BEGIN}{LOOK3}\n{ADD3}{END}", ""),
        (V31, f"Hm.</think>Wait.{BEGIN}{LOOK}{ADD}{END}", "<think>"),
        (DSML_FAMILY, f"Hm.</think>Wait.\n\n{OPEN}{invoke('look', A + A)}{invoke('add')}\n{SHUT}", "<think>"),
        (DSML_FAMILY, f'{OPEN}<{DSML}invoke name="add"/>{invoke("look", "{}")}\n{SHUT}', "</think>"),
    ],
)
def test_o6_a_limit_at_any_place_leaves_no_mark_and_no_half_call(family: Family, text: str, prompt: str) -> None:
    check_cuts(family, text, prompt=prompt)


@pytest.mark.parametrize("family", [V3, V31, DSML_FAMILY])
def test_without_tools_everything_is_text(family: Family) -> None:
    text = f"{BEGIN}{LOOK3}{LOOK}{END}{OPEN}{invoke('look', A)}{SHUT}"
    assert read(family, text, tools=()) == (Content(text),)


def test_the_marks_are_shown() -> None:
    assert {BEGIN, END, CALL, CALL_END, SEP, "<think>", "</think>"} == V3.shown == V31.shown
    assert {DSML, "<think>", "</think>"} == DSML_FAMILY.shown


@pytest.mark.parametrize(("family", "look", "add"), [(V3, LOOK3, ADD3), (V31, LOOK, ADD)])
def test_calls_without_their_section(family: Family, look: str, add: str) -> None:
    assert read(family, f"Wait.{look}{add}{END}") == (Content("Wait."), ONE, ADDED)
    assert read(family, f"{look} So.") == (ONE, Content(" So."))
    check_cuts(family, f"Wait.{look}{add}So.")
