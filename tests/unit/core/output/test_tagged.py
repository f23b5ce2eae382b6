"""Qwen's and MiniMax's tags beyond the conformance suite's fixtures, which has none for MiniMax."""

import pytest

from enginehouse.core.output.families.minimax import MINIMAX
from enginehouse.core.output.families.qwen_xml import QWEN_XML, SEED_OSS
from enginehouse.core.output.families.thinking import ALWAYS, THINK
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, Piece, Reasoning, Tool, ToolCall
from tests.unit.core.output.readings import check_cuts, read

QWEN, MM = Family(THINK, QWEN_XML), Family(ALWAYS, MINIMAX)
TOOLS = (
    Tool("look", {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "array"}}}),
    Tool("add", {}),
)


def qwen(name: str, *values: tuple[str, str]) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def invoke(name: str, *values: tuple[str, str]) -> str:
    inside = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in values)
    return f'<invoke name="{name}">\n{inside}</invoke>\n'


def minimax(*invokes: str) -> str:
    return f"<minimax:tool_call>\n{''.join(invokes)}</minimax:tool_call>"


LOOK, ADD = qwen("look", ("a", "1")), qwen("add")
ONE, TWO = ToolCall("look", '{"a": 1}'), ToolCall("add", "{}")
FORMAT = "<tool_call><function=f><parameter=p>1</parameter></function></tool_call>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOK, [ONE]),
        (f"{LOOK}\n{ADD}\n", [ONE, TWO]),
        (f"First.\n\n{LOOK}\n\nThen.", [Content("First."), ONE, Content("\n\nThen.")]),
        ("<tool_call>\n<function=add>\n</function>\n<function=look><parameter=a>1</parameter></function></tool_call>",
         [TWO, ONE]),
        # One line end on each side of a value is not its own.
        (qwen("look", ("b", "")), [ToolCall("look", '{"b": ""}')]),
        ("<function=look><parameter=b>\n</parameter></function>", [ToolCall("look", '{"b": ""}')]),
        ("<function=look><parameter=b></parameter></function>", [ToolCall("look", '{"b": ""}')]),
        (qwen("look", ("b", "\n x \n")), [ToolCall("look", '{"b": "\\n x \\n"}')]),
        ("<function=look><parameter=b> x\n</parameter></function>", [ToolCall("look", '{"b": " x\\n"}')]),
        ("<function=look>\n<parameter=b>\nx</parameter>\n</function>", [ToolCall("look", '{"b": "x"}')]),
        (qwen("look", ("a", "1"), ("b", "2"), ("c", "[3]")), [ToolCall("look", '{"a": 1, "b": "2", "c": [3]}')]),
        (qwen("look", ("a", "1"), ("a", "2")), [ToolCall("look", '{"a": 2}')]),
        # Tags in a value end it only where the call goes on.
        (qwen("look", ("b", FORMAT)), [ToolCall("look", f'{{"b": "{FORMAT}"}}')]),
        (qwen("look", ("b", "</function>\n</x>")), [ToolCall("look", '{"b": "</function>\\n</x>"}')]),
        (qwen("look", ("b", "</parameter>\nis a tag")), [ToolCall("look", '{"b": "</parameter>\\nis a tag"}')]),
        ("<function=look><parameter=b></parameter> x</parameter></function>",
         [ToolCall("look", '{"b": "</parameter> x"}')]),
        # Marks that the model forgot.
        ("<function=look>\n<parameter=a>\n1\n</parameter>\n</function>", [ONE]),
        ("<tool_call>\n<function=look>\n<parameter=a>\n1\n</function>", [ONE]),
        ("<tool_call>\n<function=look>\n<parameter=b>\n1\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
         [ToolCall("look", '{"b": "1", "a": 2}')]),
        ("<function=add></function> Then.", [TWO, Content(" Then.")]),
        # What is no call stays text.
        ("Write <tool_call> and <function=name>.", [Content("Write <tool_call> and <function=name>.")]),
        ("<function=>\n</function>", [Content("<function=>\n</function>")]),
        ("<function=f<parameter=a>", [Content("<function=f<parameter=a>")]),
        (qwen("look", ("", "1")), [Content(qwen("look", ("", "1")))]),
        (LOOK[:-24], [Content(LOOK[:-24])]),
        (f"{LOOK}\n<tool_call>\nnone", [ONE, Content("\n<tool_call>\nnone")]),
        # In the middle of thinking.
        (f"<think>Hm.\n{LOOK}\n</think>\nSo.", [Reasoning("Hm."), ONE, Content("So.")]),
        ("<think>Say <function=x> now.</think>So.", [Reasoning("Say <function=x> now."), Content("So.")]),
    ],
)  # fmt: skip
def test_qwen(text: str, expected: list[Piece]) -> None:
    assert list(read(QWEN, text, tools=TOOLS)) == expected


MLOOK, MADD = invoke("look", ("a", "1")), invoke("add")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Hm.\n</think>\n\nSo.\n{minimax(MLOOK)}\n", [Reasoning("Hm."), Content("So."), ONE]),
        (f"</think>{minimax(MLOOK, MADD)}", [ONE, TWO]),
        (f"</think>{minimax(MLOOK)}\n{minimax(MADD)}", [ONE, TWO]),
        (f"</think>{minimax(MLOOK)}Then.", [ONE, Content("Then.")]),
        # Values stand in the line, and all white space is theirs.
        ("</think>" + minimax(invoke("look", ("b", "\n x \n"))), [ToolCall("look", '{"b": "\\n x \\n"}')]),
        (f"</think>{minimax(invoke('look', ('b', 'a & b < c')))}", [ToolCall("look", '{"b": "a & b < c"}')]),
        (f"</think>{minimax(invoke('look', ('b', '</parameter> x')))}", [ToolCall("look", '{"b": "</parameter> x"}')]),
        (f"</think>{minimax(invoke('look', ('a', '1'), ('b', '2'), ('c', '[3]')))}",
         [ToolCall("look", '{"a": 1, "b": "2", "c": [3]}')]),
        # Other attributes, and no quotes.
        ('</think><minimax:tool_call><invoke name=look><parameter name="a" string="false">1</parameter></invoke>',
         [ONE]),
        # In the middle of thinking.
        (f"Hm.\n{minimax(MLOOK)}", [Reasoning("Hm."), ONE]),
        # What is no call stays text.
        ("</think>Say <minimax:tool_call> now.", [Content("Say <minimax:tool_call> now.")]),
        (f"</think>{MLOOK}", [Content(MLOOK)]),
    ],
)  # fmt: skip
def test_minimax(text: str, expected: list[Piece]) -> None:
    assert list(read(MM, text, tools=TOOLS, prompt="]~b]ai\n<think>\n")) == expected


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (QWEN, f"<think>\nHm.\n</think>\n\nFirst.\n{LOOK}\n{ADD}"),
        (QWEN, qwen("look", ("b", "one\ntwo"), ("a", "2"))),
        (MM, f"Hm.\n</think>\n\nFirst.\n{minimax(MLOOK, MADD)}"),
    ],
)
def test_o6_a_limit_leaves_no_half_of_a_call(family: Family, text: str) -> None:
    check_cuts(family, text)


def test_o6_a_value_cut_short_is_no_value() -> None:
    text = "<tool_call>\n<function=look>\n<parameter=b>\nrm -rf /\n</function>"
    assert read(QWEN, text, cut=True) == ()


def test_seed_has_another_tag_around_its_calls() -> None:
    text = f"So.\n{LOOK}\n".replace("tool_call>", "seed:tool_call>")
    assert read(Family(None, SEED_OSS), text, tools=TOOLS) == (Content("So."), ONE)
    assert read(Family(None, SEED_OSS), "<tool_call>", tools=TOOLS) == (Content("<tool_call>"),)
