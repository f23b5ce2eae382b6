"""Chunks of a streamed chat completion."""

from __future__ import annotations

from collections.abc import Iterator

from enginehouse.core.openai.answers import call_of
from enginehouse.core.openai.frames import OpenAiFrames, member
from enginehouse.core.openai.logprobs import chat_logprobs
from enginehouse.core.output.answer import Identity, News
from enginehouse.core.output.pieces import Content, Piece, Reasoning
from enginehouse.wire.sse import to_json


class ChatFrames(OpenAiFrames):
    """A call is two deltas: id, type and name with no arguments yet, then the arguments. Nothing is null in them."""

    __slots__ = ("_calls", "_field", "_roled", "_thinking")

    _nothing = b'"delta":{}'

    def __init__(
        self,
        identity: Identity,
        *,
        choices: int = 1,
        include_usage: bool = False,
        reasoning_field: str = "reasoning_content",
        calls: bool = False,
    ) -> None:
        """calls: the answer may have some, and then perhaps no content: none is promised at its beginning."""
        super().__init__(b"chat.completion.chunk", identity, choices, include_usage, b'"delta":{"content":', b"}")
        self._field = to_json(reasoning_field)
        self._roled = b'"delta":{"role":"assistant","content":%b}' % (b"null" if calls else b'""')
        self._thinking = [self._choice(index) + b'"delta":{%b:' % self._field for index in range(choices)]
        self._calls: dict[int, int] = {}
        """How many calls a choice has had."""

    def begin(self, choice: int) -> bytes:
        """The frame that says who speaks."""
        return self._frame(choice, self._roled)

    def news(self, choice: int, news: News) -> bytes:
        """A frame for each delta; what goes with all of them stands in the first."""
        pieces = news.pieces
        if len(pieces) == 1 and news.likelihoods is None and news.token_ids is None and news.echo is None:
            piece = pieces[0]
            if isinstance(piece, Reasoning):  # most tokens of many models
                return self._thinking[choice] + to_json(piece.text) + self._after
        logprobs = to_json(chat_logprobs(news.likelihoods)) if news.likelihoods else b"null"
        more = member("token_ids", news.token_ids)
        beside = member("prompt_token_ids", news.echo.token_ids if news.echo else None)
        deltas = [delta for piece in news.pieces for delta in self._deltas(choice, piece)]
        if not deltas and (news.likelihoods or news.token_ids or beside):
            deltas = [b""]
        out = b""
        for delta in deltas:
            out += self._frame(choice, b'"delta":{%b}' % delta, logprobs=logprobs, more=more, beside=beside)
            logprobs, more, beside = b"null", b"", b""
        return out

    def _deltas(self, choice: int, piece: Piece) -> Iterator[bytes]:
        if isinstance(piece, Content):
            yield b'"content":' + to_json(piece.text)
        elif isinstance(piece, Reasoning):
            yield self._field + b":" + to_json(piece.text)
        else:
            index = self._calls.get(choice, 0)
            self._calls[choice] = index + 1
            call = call_of(piece)
            call["function"]["arguments"] = ""
            yield b'"tool_calls":' + to_json([{"index": index, **call}])
            if piece.arguments:
                yield b'"tool_calls":' + to_json([{"index": index, "function": {"arguments": piece.arguments}}])
