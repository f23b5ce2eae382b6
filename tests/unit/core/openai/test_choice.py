"""One choice: what its client gets of text, thinking, calls, likelihoods and ids, and how it ends."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai.choice import PlainChoice, RichChoice, Wishes, whole_choice
from enginehouse.core.openai.stops import StopMatcher
from enginehouse.core.openai.text import AnswerText
from enginehouse.core.output.answer import Choice, Echo, End, News
from enginehouse.core.output.pieces import Content, ParserInput, Piece, Reasoning, Tool, ToolCall
from enginehouse.core.output.registry import formats
from enginehouse.domain.stream import Delta, Finish, TokenLogprob

EOS = 0


class Letters:
    """A tokenizer of characters: an id is a code point, but € is two tokens, of which the first has no text."""

    def __init__(self) -> None:
        self._half = False

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([{1: "", 2: "€", EOS: ""}.get(number, chr(number)) for number in token_ids])

    def flush(self) -> str:
        return ""

    def token_text(self, token_id: int) -> str:
        return {EOS: "<eos>", 1: "\ufffd", 2: "\ufffd"}.get(token_id, chr(token_id))

    def token_bytes(self, token_id: int) -> bytes:
        return {EOS: b"<eos>", 1: "€".encode()[:2], 2: "€".encode()[2:]}.get(token_id, chr(token_id).encode())


NAMES = Letters()
HERMES = formats("hermes", "qwen3")
TOOLS = (Tool("add", {"type": "object"}), Tool("now", {}))


def ids(text: str) -> list[int]:
    return [number for character in text for number in ((1, 2) if character == "€" else (ord(character),))]


def rich(
    wishes: Wishes = Wishes(),  # noqa: B008 - frozen
    *,
    stops: tuple[str, ...] = (),
    keep: bool = False,
    tools: tuple[Tool, ...] | None = None,
    tail: str = "",
    max_tokens: int = 10_000,
) -> RichChoice:
    text = AnswerText(Letters(), StopMatcher(stops, keep=keep) if stops else None, 0, max_tokens)
    if tools is None:
        return RichChoice(text, None, wishes, thinks=False)
    return RichChoice(text, HERMES.parser(ParserInput(tools, tail)), wishes, thinks=True)


def delta(tokens: Sequence[int], finish: Finish | None = None) -> Delta:
    return Delta(tokens, finish, logprobs=[TokenLogprob(token, -token / 8, ((token, -token / 8),)) for token in tokens])


def told(choice: RichChoice | PlainChoice, deltas: Sequence[Delta]) -> tuple[Choice, list[str | News]]:
    """All that comes out, as a whole and in parts."""
    parts: list[str | News] = []
    for one in deltas:
        assert choice.end is None
        parts.append(choice.push(one))
        if choice.end is not None:
            break
    assert choice.end is not None
    return whole_choice(0, parts, choice.end), parts


def cut(tokens: Sequence[int], places: Sequence[int], finish: Finish) -> list[Delta]:
    """The tokens in messages that end at these places, the finish with the last."""
    ends = sorted({place % (len(tokens) + 1) for place in places} | {len(tokens)})
    starts = [0, *ends[:-1]]
    return [
        delta(tokens[start:end], finish if end == len(tokens) else None)
        for start, end in zip(starts, ends, strict=True)
        if end > start or end == len(tokens)
    ]


def names(choice: Choice) -> str:
    assert choice.likelihoods is not None
    return b"".join(token.raw for token in choice.likelihoods).decode()


def test_plain_text_is_all_that_a_plain_choice_gives() -> None:
    choice, parts = told(PlainChoice(AnswerText(Letters())), [Delta(ids("ab")), Delta([*ids("c"), EOS], Finish.STOP)])
    assert parts == ["ab", "c"]
    assert choice == Choice(0, (Content("abc"),), End(Finish.STOP))


@pytest.mark.parametrize(
    ("text", "stops", "keep", "tokens", "stop"),
    [
        ("a€bc", (), False, "a€bc", None),
        ("one STOP two", ("STOP",), False, "one ", "STOP"),  # over several tokens
        ("one STOP two", ("STOP",), True, "one STOP", "STOP"),
        ("one STO two", ("STOP",), False, "one STO two", None),  # a false beginning
        ("aabaac", ("aab", "abaa"), False, "", "aab"),  # overlapping: what is complete first
        ("x€y", ("€",), False, "x", "€"),
    ],
)
def test_o3_o10_tokens_are_those_of_the_text_that_the_stop_string_left(
    text: str, stops: tuple[str, ...], keep: bool, tokens: str, stop: str | None
) -> None:
    wishes = Wishes(names=NAMES)
    choice, _ = told(
        rich(wishes, stops=stops, keep=keep), [delta([one]) for one in ids(text)] + [Delta([], Finish.LENGTH)]
    )
    assert "".join(piece.text for piece in choice.pieces if isinstance(piece, Content)) == tokens
    assert names(choice) == tokens
    assert choice.end == End(Finish.STOP if stop else Finish.LENGTH, stop=stop)


@given(
    st.text("ab€S", max_size=24),
    st.lists(st.text("ab€S", min_size=1, max_size=4), max_size=3),
    st.booleans(),
    st.lists(st.integers(0, 30), max_size=8),
    st.sampled_from(list(Finish)),
)
def test_o10_streamed_and_whole_agree_however_the_tokens_come(
    text: str, stops: list[str], keep: bool, places: list[int], finish: Finish
) -> None:
    tokens = ids(text) + ([EOS] if finish is Finish.STOP else [])

    def run(deltas: Sequence[Delta]) -> tuple[Choice, list[str | News]]:
        return told(rich(Wishes(names=NAMES, token_ids=True), stops=tuple(stops), keep=keep), deltas)

    whole, _ = run([delta(tokens, finish)])
    streamed, parts = run(cut(tokens, places, finish))
    assert streamed == whole
    assert whole.token_ids == tokens[: len(whole.token_ids or ())]
    content = "".join(piece.text for piece in whole.pieces if isinstance(piece, Content))
    assert names(whole) == content
    assert [token.offset for token in whole.likelihoods or ()] == [
        len(b"".join(t.raw for t in (whole.likelihoods or ())[:at]).decode(errors="ignore"))
        for at in range(len(whole.likelihoods or ()))
    ]
    written = sent = ""
    for part in parts:  # no token before something of it is in the text
        assert isinstance(part, News)
        written += "".join(piece.text for piece in part.pieces if isinstance(piece, Content))
        sent += b"".join(token.raw for token in part.likelihoods or ()).decode(errors="ignore")
        assert written.startswith(sent)


@pytest.mark.parametrize("ending", [False, True])
def test_o10_the_token_that_ends_an_answer_is_listed_where_it_is_asked_for(ending: bool) -> None:
    choice, _ = told(rich(Wishes(names=NAMES, ending=ending)), [delta([*ids("ab"), EOS], Finish.STOP)])
    assert names(choice) == ("ab<eos>" if ending else "ab")
    assert choice.end == End(Finish.STOP)


@pytest.mark.parametrize("ending", [False, True])
def test_o10_an_engine_may_tell_of_the_end_after_the_token_that_made_it(ending: bool) -> None:
    choice, _ = told(rich(Wishes(names=NAMES, ending=ending)), [delta(ids("ab")), delta([EOS]), delta([], Finish.STOP)])
    assert names(choice) == ("ab<eos>" if ending else "ab")


def test_o10_tokens_beyond_the_limit_are_not_listed() -> None:
    choice, _ = told(rich(Wishes(names=NAMES, token_ids=True), max_tokens=2), [delta(ids("abcd"))])
    assert (names(choice), choice.token_ids, choice.end) == ("ab", ids("ab"), End(Finish.LENGTH))


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
ADD = ToolCall("add", '{"a": 1}')


def arguments(pieces: Sequence[Piece]) -> list[tuple[str, Any]]:
    return [(piece.name, json.loads(piece.arguments)) for piece in pieces if isinstance(piece, ToolCall)]


@given(st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_o5_o6_calls_and_thinking_are_the_same_however_the_tokens_come(places: list[int], likely: bool) -> None:
    tokens = [*ids(f"<think>Hm.</think>Let me see.{CALL}\n{NOW}"), EOS]
    wishes = Wishes(names=NAMES if likely else None, new_call_id=lambda: "call_x")
    choice, _ = told(rich(wishes, tools=TOOLS), cut(tokens, places, Finish.STOP))
    assert choice.pieces[:2] == (Reasoning("Hm."), Content("Let me see."))
    assert arguments(choice.pieces) == [("add", {"a": 1}), ("now", {})]
    assert {piece.id for piece in choice.pieces if isinstance(piece, ToolCall)} == {"call_x"}
    assert choice.end == End(Finish.STOP, called=True)
    if likely:
        assert names(choice) == f"<think>Hm.</think>Let me see.{CALL}\n{NOW}"


def test_o6_a_call_that_a_limit_cut_is_none_and_leaves_nothing_in_the_content() -> None:
    choice, _ = told(rich(tools=TOOLS), [delta(ids(f"Well.{CALL}{NOW[:30]}"), Finish.LENGTH)])
    assert choice.pieces[0] == Content("Well.")
    assert arguments(choice.pieces) == [("add", {"a": 1})]
    assert len(choice.pieces) == 2
    assert choice.end == End(Finish.LENGTH, called=True)


@pytest.mark.parametrize("at_once", [1, 20])
def test_tokens_of_thinking_beyond_the_limit_are_not_counted(at_once: int) -> None:
    reader = rich(tools=TOOLS, tail="<think>\n", max_tokens=3)
    tokens = ids("Hmmmmm")
    told(reader, [delta(tokens[at : at + at_once]) for at in range(0, len(tokens), at_once)])
    assert (reader.tokens, reader.reasoning_tokens) == (3, 3)


@pytest.mark.parametrize("keep", [False, True])
def test_o6_a_call_that_a_stop_string_cut_is_none_and_leaves_nothing_in_the_content(keep: bool) -> None:
    reader = rich(stops=("arguments",), keep=keep, tools=TOOLS)
    choice, _ = told(reader, [delta([one]) for one in ids(f"Well.{CALL}")])
    assert choice.pieces == (Content("Well."),)
    assert choice.end == End(Finish.STOP, called=False, stop="arguments")
    reader = rich(stops=('"now"',), keep=keep, tools=TOOLS)
    choice, _ = told(reader, [delta(ids(f"Well.{CALL}{NOW}"))])
    assert arguments(choice.pieces) == [("add", {"a": 1})]
    assert len(choice.pieces) == 2
    assert choice.end == End(Finish.STOP, called=True, stop='"now"')


@pytest.mark.parametrize(
    ("text", "stop", "pieces"),
    [
        (f"Well.{CALL}", "</tool_call>", (Content("Well."), ADD)),  # the model did finish it
        ("Well.<tool_call>none</tool_call>", "</tool_call>", (Content("Well.<tool_call>none"),)),
        ("a <t", "\n", (Content("a <t"),)),
        ("a <t", "ool_call>", (Content("a"),)),
        ("a \n", "b", (Content("a \n"),)),
        ("<think>Hm", "</think>\n\nHi", (Reasoning("Hm"),)),
        ("<think>H", "m</think>", (Reasoning("H"),)),
        ("<think>Hm</think>\n", "\nHi", (Reasoning("Hm"),)),
    ],
)
@given(cuts=st.lists(st.integers(0, 200), max_size=4))
def test_o3_o6_what_a_stop_string_leaves(text: str, stop: str, pieces: tuple[Piece, ...], cuts: list[int]) -> None:
    whole = text if stop in text else text + stop
    places = sorted({0, len(whole), *[cut % len(whole) for cut in cuts]})
    deltas = [delta(ids(whole[start:end])) for start, end in pairwise(places)]
    choice, _ = told(rich(stops=(stop,), tools=TOOLS), deltas)
    assert tuple(replace(piece, id=None) if isinstance(piece, ToolCall) else piece for piece in choice.pieces) == pieces


def test_one_call_is_enough_where_no_parallel_ones_are_wanted() -> None:
    reader = rich(Wishes(one_call=True), tools=TOOLS)
    choice, _ = told(reader, [delta([one]) for one in ids(CALL + NOW)])
    assert arguments(choice.pieces) == [("add", {"a": 1})]
    assert choice.end == End(Finish.STOP, called=True)
    assert reader.tokens == len(CALL)
    choice, _ = told(rich(Wishes(one_call=True), tools=TOOLS), [delta(ids(CALL + NOW + "more"))])
    assert arguments(choice.pieces) == [("add", {"a": 1})]


@pytest.mark.parametrize(
    ("text", "tail", "least", "most"),
    [
        ("Hello", "", 0, 0),
        ("<think>Hm</think>Hello", "", 2, 17),
        ("Hm</think>Hello", "<think>\n", 2, 10),
        ("Hm", "<think>\n", 2, 2),
    ],
)
def test_tokens_of_thinking_are_counted(text: str, tail: str, least: int, most: int) -> None:
    for places in ([], range(len(text))):
        reader = rich(tools=(), tail=tail)
        told(reader, cut(ids(text), places, Finish.LENGTH))
        assert reader.reasoning_tokens is not None
        assert least <= reader.reasoning_tokens <= most


def test_tokens_of_thinking_do_not_depend_on_how_many_come_at_once() -> None:
    found = set()
    for places in ([], range(100), [9], [10], [20]):
        reader = rich(tools=TOOLS)
        told(reader, cut(ids(f"<think>Hm. So</think>\n\nHello{CALL}"), places, Finish.LENGTH))
        found.add(reader.reasoning_tokens)
    assert len(found) == 1


def test_o10_the_prompt_comes_again_with_its_likelihoods_and_before_everything_else() -> None:
    prompt = ids("p€")
    wishes = Wishes(
        names=NAMES,
        echo=Echo("p€", None, prompt),
        prompt_decoder=Letters,
        prompt_ids=prompt,
    )
    reader = rich(wishes)
    assert not reader.push(Delta([]))
    first = delta(ids("a"))
    first.prompt_logprobs = [None, TokenLogprob(1, -1.0), TokenLogprob(2, -2.0)]
    choice, parts = told(reader, [first, delta(ids("b"), Finish.LENGTH)])
    assert isinstance(parts[0], News)
    assert isinstance(parts[1], News)
    assert (parts[0].echo, parts[1].echo) == (choice.echo, None)
    assert choice.echo is not None
    assert (choice.echo.text, choice.echo.token_ids) == ("p€", prompt)
    assert [(t.token, t.logprob, t.offset) for t in choice.echo.likelihoods or ()] == [
        ("p", None, 0),
        ("\ufffd", -1.0, 1),
        ("\ufffd", -2.0, 1),
    ]


def test_text_of_a_rich_choice_is_text_where_it_is_nothing_else() -> None:
    reader = rich(tools=TOOLS)
    assert reader.push(Delta(ids("Hello"))) == "Hello"
    assert reader.push(Delta(ids("<"))) == ""
    assert reader.push(Delta(ids("b> x"))) == "<b> x"
