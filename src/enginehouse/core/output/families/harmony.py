"""Harmony, the form of gpt-oss (20b, 120b): an answer is a row of messages, each with a header.

    <|channel|>analysis<|message|>I should look.<|end|><|start|>assistant<|channel|>commentary
    to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>

(in one line; the prompt ends with `<|start|>assistant`). The channels `final` and `commentary` are for the reader of
the answer, any other one is thinking. A message to `functions.NAME` is a call; whom it is for stands before or behind
the channel. What it says to tools of its training that were not offered (`python`, `browser`) is for nobody here, and
left out.

It is read as text, by our own means: the `openai-harmony` library fetches its vocabulary from the network. The price:
a mark that a message only mentions looks like one. So a message ends only where an end mark is followed by the next
message or by nothing; engines keep the last mark or cut it off.
"""

from __future__ import annotations

import re
from typing import Final

from enginehouse.core.output.family import Family
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import Content, ParserInput, Reasoning
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import arguments

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
_BODY: Final = Marks(*ENDS, *(end + START for end in ENDS))
_END: Final = re.compile("|".join(map(re.escape, ENDS)))
_HEADER: Final = Marks(MESSAGE, START, *ENDS)
_CHANNEL: Final = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT: Final = re.compile(r"\bto=(functions\.)?([\w.:/-]+)")
_READERS: Final = frozenset({"final", "commentary"})
_NOBODY_ELSE: Final = frozenset({"all", "assistant", "user"})


def _read(reader: Reader, given: ParserInput) -> Reading[None]:
    header, inside = yield from _begin(reader, given.prompt_tail)
    while True:
        if not inside:
            text, mark = yield from reader.take(_HEADER)
            header += text
            if mark is None:
                _headless(reader, header)
                return
            if mark != MESSAGE:
                header = ""
                continue
        if not (yield from _message(reader, header, given)):
            return
        header, inside = "", False


def _begin(reader: Reader, prompt: str) -> Reading[tuple[str, bool]]:
    """(the header as far as it is written, whether it is all of it)."""
    _, start, begun = prompt.rpartition(START)
    header, message, text = begun.partition(MESSAGE)
    if message and not _END.search(text):
        return header, True
    space = yield from reader.space()
    mark = yield from reader.next_is(CHANNEL, CONSTRAIN, MESSAGE, START, "to=")
    if mark is None:  # no header: more of a text that the prompt began
        reader.say(space)
        return CHANNEL + "final", True
    if mark == START:
        return "", False
    header = f"{header} {mark}" if start and not message else mark
    return header.removesuffix(MESSAGE), mark == MESSAGE


def _headless(reader: Reader, header: str) -> None:
    """The answer ended within a header. A model that forgot the mark of a message meant what follows as one."""
    channel = _last(_CHANNEL, header)
    if channel is not None and channel[1] == "final" and not reader.cut:
        reader.say(header[channel.end() :].lstrip())


def _message(reader: Reader, header: str, given: ParserInput) -> Reading[bool]:
    """One message, up to its end. Whether another one follows."""
    recipient = _last(_RECIPIENT, header)
    if recipient is not None and recipient[2] not in _NOBODY_ELSE and given.tools:
        name = recipient[2]
        if recipient[1] or any(tool.name == name for tool in given.tools):
            return (yield from _call(reader, name))
        return (yield from _rest(reader))[1]
    channel = _last(_CHANNEL, header)
    told = (channel is not None and channel[1] in _READERS) or not given.reasoning
    while (mark := (yield from reader.until(_BODY, Content if told else Reasoning))) is not None:
        if mark.endswith(START) or reader.ended:
            return mark.endswith(START)
        reader.say(mark, Content if told else Reasoning)  # it is only mentioned
    return False


def _call(reader: Reader, name: str) -> Reading[bool]:
    text, whole = yield from reader.json()
    found = arguments(text) if whole else None
    if found is not None:
        reader.call(name, found)
        return (yield from _rest(reader))[1]
    rest, more = yield from _rest(reader)
    if reader.cut:
        return more
    if not (text + rest).strip():  # a model may leave an empty object out
        reader.call(name, "{}")
    else:
        reader.say(_END.split(text + rest)[0])
    return more


def _rest(reader: Reader) -> Reading[tuple[str, bool]]:
    """(what is left of a message up to the first mark, whether another message follows)."""
    rest, mark = yield from reader.take(_BODY)
    while mark is not None and not mark.endswith(START):
        _, mark = yield from reader.take(_BODY)
    return rest, mark is not None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    *_, found = (None, *pattern.finditer(text))
    return found


HARMONY: Final = Family(whole=_read, special=frozenset({START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS}))
