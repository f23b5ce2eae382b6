"""Chunks of a streamed text completion."""

from __future__ import annotations

from enginehouse.core.openai.frames import OpenAiFrames, member
from enginehouse.core.openai.logprobs import completion_logprobs
from enginehouse.core.output.answer import Echo, Identity, News
from enginehouse.core.output.pieces import Content
from enginehouse.wire.sse import to_json


class CompletionFrames(OpenAiFrames):
    """Text only; with `echo` the prompt is in the first frame of each choice."""

    __slots__ = ("_echoed",)

    _nothing = b'"text":""'

    def __init__(self, identity: Identity, *, choices: int = 1, include_usage: bool = False) -> None:
        super().__init__(b"text_completion", identity, choices, include_usage, b'"text":', b"")
        self._echoed: dict[int, int] = {}
        """Characters of the prompt that a choice began with."""

    def begin(self, choice: int) -> bytes:
        """Nothing: a completion has no opening frame."""
        return b""

    def news(self, choice: int, news: News) -> bytes:
        """One frame."""
        echo = news.echo or Echo()
        if echo.text:
            self._echoed[choice] = len(echo.text)
        logprobs = b"null"
        if news.likelihoods or echo.likelihoods:
            before = self._echoed.get(choice, 0)
            logprobs = to_json(completion_logprobs(news.likelihoods or (), before, echo.likelihoods or ()))
        text = (echo.text or "") + "".join([piece.text for piece in news.pieces if isinstance(piece, Content)])
        more = member("token_ids", news.token_ids) + member("prompt_token_ids", echo.token_ids)
        if not (text or more or logprobs != b"null"):
            return b""
        return self._frame(choice, b'"text":' + to_json(text), logprobs=logprobs, more=more)
