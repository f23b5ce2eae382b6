"""Whatever happens to the choices of a stream, in whatever order: each says its text once, and ends once."""

import json
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from enginehouse.adapters.metrics.meters import RequestCounts
from enginehouse.core.openai.chat_frames import ChatFrames
from enginehouse.core.openai.choice import AnyChoice, PlainChoice, RichChoice, Wishes, whole_choice
from enginehouse.core.openai.text import AnswerText
from enginehouse.core.output.answer import Identity
from enginehouse.core.output.pieces import Content, ParserInput, Tool, ToolCall
from enginehouse.core.output.registry import formats
from enginehouse.domain.errors import EngineBroken
from enginehouse.domain.stream import Delta, Finish
from enginehouse.http.answers import Tally
from enginehouse.http.streaming import StreamedAnswer, StreamedChoice
from tests.unit.core.openai.test_choice import Letters, ids
from tests.unit.http.test_answers import Call, Client

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
MOVES = ("push", "push", "push", "again", "finish", "reads", "stops")
TEXTS = ("a", "b c", "<", CALL, CALL[:20], "<think>", "</think>")
STEPS = st.sampled_from(list(product(MOVES, range(3), TEXTS)))  # drawn at once: three draws take three times as long


def plain() -> AnyChoice:
    return PlainChoice(AnswerText(Letters()))


def rich() -> AnyChoice:
    parser = formats("hermes", "qwen3").parser(ParserInput((Tool("f", {}),)))
    return RichChoice(AnswerText(Letters()), parser, Wishes(new_call_id=lambda: "call_1"), thinks=True)


class Told:
    """What a client heard of one choice."""

    def __init__(self) -> None:
        self.roles = self.ends = 0
        self.content = ""
        self.calls: list[str] = []

    def hear(self, choice: Any) -> None:
        assert not self.ends
        delta = choice["delta"]
        self.roles += "role" in delta
        assert self.roles == 1
        self.content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(self.calls)
                self.calls.append("")
            self.calls[-1] += call["function"]["arguments"]
        self.ends += choice["finish_reason"] is not None


@settings(max_examples=400)
@given(st.lists(STEPS, min_size=8, max_size=40), st.booleans(), st.booleans(), st.booleans())
def test_o1_each_choice_says_its_text_and_ends_once(
    steps: list[tuple[str, int, str]], parsed: bool, paused: bool, fails: bool
) -> None:
    client = Client(paused=paused)
    meter = RequestCounts().begin("/v1/chat/completions")
    tally = Tally([3], meter)
    answer = StreamedAnswer(client, ChatFrames(Identity("id", "m", 1), choices=3, include_usage=True), [], tally)
    choices = [
        StreamedChoice(at, rich if parsed else plain, tally, None if at else 0, meter, answer) for at in range(3)
    ]
    calls = [Call() for _ in choices]
    texts = ["", "", ""]
    for choice, call in zip(choices, calls, strict=True):
        answer.add(choice)
        choice.begin(call)

    def do(step: str, at: int, text: str) -> None:
        choice = choices[at]
        over = getattr(choice.choice, "end", None) is not None
        if step == "reads" or step == "stops":
            if client.paused == (step == "reads"):
                client.reads(step == "reads")
        elif over:
            return
        elif step == "again":
            if not choice.sent:  # else nobody would try again
                calls[at], texts[at] = Call(), ""
                choice.begin(calls[at])
        else:
            finish = Finish.LENGTH if step == "finish" else None
            texts[at] += text
            assert choice.push(Delta(ids(text), finish)) is (finish is not None)

    for step, at, text in steps:
        do(step, at, text)
        if not answer.complete:
            open_ = [at for at in range(3) if choices[at].choice.end is None]
            assert all(calls[at].paused is client.paused for at in open_)
    if fails and answer.sent and not answer.complete:
        answer.fail(EngineBroken("it went"))
    elif not fails:
        for at in range(3):
            do("finish", at, "")
        do("reads", 0, "")
        assert answer.complete
    if not client.out:
        return
    head, _, body = client.out.decode().partition("|")
    assert head == "200"
    events = [event.removeprefix("data: ") for event in body.split("\n\n") if event]
    told = [Told(), Told(), Told()]
    for event in events:
        for choice in json.loads(event).get("choices", ()) if event != "[DONE]" else ():
            told[choice["index"]].hear(choice)
    assert events.count("[DONE]") == (1 if answer.complete and "error" not in events[-1] else 0)
    if fails:
        return
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["prompt_tokens"] == 3
    assert client.finished
    for at, heard in enumerate(told):
        assert (heard.roles, heard.ends) == (1, 1)
        reader = rich() if parsed else plain()
        parts = [reader.push(Delta(ids(texts[at]), Finish.LENGTH))]
        assert reader.end is not None
        pieces = whole_choice(at, parts, reader.end).pieces
        assert heard.content == "".join(piece.text for piece in pieces if isinstance(piece, Content))
        assert heard.calls == [piece.arguments for piece in pieces if isinstance(piece, ToolCall)]
