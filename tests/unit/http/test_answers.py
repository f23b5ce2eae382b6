"""A streamed answer whose client stops reading: what is held, what a retry forgets, what an error lets out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import enginehouse.mock
from enginehouse.adapters.metrics.meters import RequestCounts
from enginehouse.adapters.tokenizer import load_tokenizer
from enginehouse.core.openai.chat_frames import ChatFrames
from enginehouse.core.openai.choice import PlainChoice
from enginehouse.core.openai.completion_frames import CompletionFrames
from enginehouse.core.openai.text import AnswerText
from enginehouse.core.output.answer import Identity
from enginehouse.domain.errors import EngineBroken
from enginehouse.domain.stream import Delta, Finish
from enginehouse.http.answers import Tally
from enginehouse.http.exchange import Headers
from enginehouse.http.streaming import StreamedAnswer, StreamedChoice

TOKENIZER = load_tokenizer(str(Path(enginehouse.mock.__file__).parent / "model"))
ONE, TWO = (list(TOKENIZER._encode(text, False)) for text in (" one", " two"))


class Client:
    """The Stream port; the test says when the client reads."""

    gone = False

    def __init__(self, *, paused: bool = False) -> None:
        self.paused = paused
        self.out = b""
        self.finished = False

    def start(self, status: int, headers: Headers) -> None:
        self.out += b"%d|" % status

    def write(self, data: bytes) -> None:
        self.out += data

    def finish(self, data: bytes) -> None:
        self.out += data
        self.finished = True

    def watch(self, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        self._on = {True: on_pause, False: on_resume}

    def on_gone(self, callback: Callable[[], None] | None) -> None: ...

    async def close(self) -> None: ...

    def reads(self, reads: bool) -> None:
        self.paused = not reads
        self._on[self.paused]()

    @property
    def text(self) -> str:
        frames = [line[6:] for line in self.out.decode().split("\n\n") for line in [line.split("|")[-1]] if line]
        return "".join(json.loads(f)["choices"][0]["text"] for f in frames if f != "[DONE]" and "error" not in f)


class Call:
    def __init__(self) -> None:
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def cancel(self) -> None: ...


def choices(client: Client, number: int) -> tuple[StreamedAnswer, list[StreamedChoice]]:
    """Several answers to one prompt."""
    meter = RequestCounts().begin("/v1/completions")
    tally = Tally([3], meter)
    answer = StreamedAnswer(client, CompletionFrames(Identity("id", "m", 1), choices=number), [], tally)

    def new() -> PlainChoice:
        return PlainChoice(AnswerText(TOKENIZER.decoder()))

    made = [StreamedChoice(at, new, tally, None if at else 0, meter, answer) for at in range(number)]
    for choice in made:
        answer.add(choice)
    return answer, made


def make(client: Client) -> StreamedChoice:
    return choices(client, 1)[1][0]


def test_s2_while_the_client_does_not_read_the_engine_is_paused_and_text_is_held_as_one() -> None:
    client, call = Client(), Call()
    answer = make(client)
    answer.begin(call)
    answer.push(Delta(ONE))
    client.reads(False)
    assert call.paused
    before = client.out
    for _ in range(50):
        answer.push(Delta(TWO))
    assert client.out == before
    client.reads(True)
    assert not call.paused
    assert client.out.count(b"data: ") == 2
    assert client.text == " one" + " two" * 50


def test_while_nothing_can_be_shown_a_comment_says_now_and_then_that_there_is_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("enginehouse.http.streaming.monotonic", lambda: clock[0])
    client = Client()
    answer = make(client)
    answer.begin(Call())
    answer.push(Delta(()))
    assert client.out == b""  # an answer that has not begun may still be tried elsewhere
    answer.push(Delta(ONE))
    before = client.out
    for clock[0] in (101.0, 114.0, 115.5, 116.0, 130.0, 131.0):
        answer.push(Delta(()))
    answer.push(Delta(TWO))
    said = client.out.removeprefix(before).decode().split("\n\n")
    assert [part[:2] for part in said] == [": ", ": ", "da", ""]


def test_s2_a_stream_that_starts_paused_pauses_its_engine() -> None:
    call = Call()
    make(Client(paused=True)).begin(call)
    assert call.paused


def test_m2_a_retry_does_not_let_out_what_the_failed_attempt_left_held() -> None:
    client = Client(paused=True)
    answer = make(client)
    answer.begin(Call())
    answer.push(Delta(ONE))
    assert not answer.sent
    answer.begin(Call())
    answer.push(Delta(TWO))
    client.reads(True)
    assert client.text == " two"


def test_m4_an_error_comes_after_the_text_that_was_held() -> None:
    client = Client()
    whole, (answer,) = choices(client, 1)
    answer.begin(Call())
    answer.push(Delta(ONE))
    client.reads(False)
    answer.push(Delta(TWO))
    whole.fail(EngineBroken("it went"))
    assert client.finished
    assert client.text == " one two"


def test_an_answer_that_ends_while_the_client_does_not_read_ends_when_it_does() -> None:
    client = Client()
    answer = make(client)
    answer.begin(Call())
    answer.push(Delta(ONE))
    client.reads(False)
    answer.push(Delta(TWO, Finish.LENGTH))
    assert not client.finished
    client.reads(True)
    assert client.finished
    assert client.text == " one two"
    assert client.out.endswith(b"data: [DONE]\n\n")


def test_the_engine_stays_paused_when_the_held_text_fills_the_transport_again() -> None:
    class Small(Client):
        def write(self, data: bytes) -> None:
            super().write(data)
            if len(data) > 1000:
                self.reads(False)

    client, call = Small(), Call()
    answer = make(client)
    answer.begin(call)
    answer.push(Delta(ONE))
    client.reads(False)
    for _ in range(500):
        answer.push(Delta(TWO))
    client.reads(True)
    assert call.paused


def test_s2_when_the_client_does_not_read_the_engines_of_all_choices_are_paused() -> None:
    client, calls = Client(), [Call(), Call(), Call()]
    _, made = choices(client, 3)
    for choice, call in zip(made, calls, strict=True):
        choice.begin(call)
    made[0].push(Delta(ONE))
    client.reads(False)
    made[1].push(Delta(TWO))
    made[0].push(Delta(TWO))
    assert all(call.paused for call in calls)
    client.reads(True)
    assert not any(call.paused for call in calls)
    assert client.text == " one two two"
    assert not made[2].sent


def test_o1_choices_share_one_stream_that_ends_once() -> None:
    client = Client()
    answer, made = choices(client, 2)
    for choice in made:
        choice.begin(Call())
    made[1].push(Delta(ONE, Finish.LENGTH))
    assert not client.finished
    client.reads(False)
    made[0].push(Delta(TWO, Finish.STOP))
    assert not answer.complete
    client.reads(True)
    assert client.finished
    assert answer.complete
    assert client.out.count(b'"finish_reason":"') == 2
    assert client.out.count(b"[DONE]") == 1
    assert client.out.count(b"200|") == 1


def test_m2_a_choice_may_begin_anew_while_another_has_been_sent() -> None:
    client = Client()
    _, made = choices(client, 2)
    for choice in made:
        choice.begin(Call())
    made[0].push(Delta(ONE))
    assert [choice.sent for choice in made] == [True, False]
    client.reads(False)
    made[1].push(Delta(ONE))
    made[1].begin(Call())
    made[1].push(Delta(TWO))
    client.reads(True)
    assert client.text == " one two"


def test_o11_the_first_words_of_choices_come_in_the_order_of_their_indices() -> None:
    """The official client counts choices as they come."""
    client = Client()
    meter = RequestCounts().begin("/v1/chat/completions")
    tally = Tally([3], meter)
    answer = StreamedAnswer(client, ChatFrames(Identity("id", "m", 1), choices=3), [], tally)
    made = [
        StreamedChoice(at, lambda: PlainChoice(AnswerText(TOKENIZER.decoder())), tally, None, meter, answer)
        for at in range(3)
    ]
    for choice in made:
        answer.add(choice)
        choice.begin(Call())
    for at in (1, 0, 2):
        made[at].push(Delta(ONE))
    frames = [json.loads(line.split("data: ")[1]) for line in client.out.decode().split("\n\n") if line]
    assert [f["choices"][0]["index"] for f in frames if "role" in f["choices"][0]["delta"]] == [0, 1, 2]
    assert [f["choices"][0]["index"] for f in frames if "role" not in f["choices"][0]["delta"]] == [1, 0, 2]
