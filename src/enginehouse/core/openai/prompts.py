"""The `prompt` of a text completion: one text, or one list of token ids."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from enginehouse.core.openai.bounds import MAX_PROMPT_IDS
from enginehouse.core.openai.fields import TOKEN_ID_MAX, TokenId
from enginehouse.core.openai.refusals import kind, too_much, wrong_value
from enginehouse.domain.errors import InvalidRequest

_many_ids = msgspec.json.Decoder(list[TokenId]).decode
_one_of_many_ids = msgspec.json.Decoder(list[list[TokenId]]).decode
_PLACE: Final = re.compile(r"- at `\$(?:\[0\])?\[(\d+)\]`$")
_KINDS: Final[dict[str, Any]] = {"null": None, "bool": True, "float": 0.5, "str": "", "array": [], "object": {}}


def read_prompt(prompt: Any) -> str | tuple[int, ...]:
    """A prompt that was decoded. Raises InvalidRequest."""
    if isinstance(prompt, tuple):  # of read_many_ids
        return prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise _several(len(prompt))
        prompt = prompt[0]
    if not isinstance(prompt, str | list):
        raise wrong_value("prompt", prompt)
    if not prompt:
        raise InvalidRequest("'prompt' is empty; it must hold at least one character or token", param="prompt")
    if isinstance(prompt, str):
        return prompt
    try:
        return tuple(msgspec.convert(prompt, list[TokenId]))
    except msgspec.ValidationError:
        at, item = next(
            (at, item) for at, item in enumerate(prompt) if type(item) is not int or not 0 <= item <= TOKEN_ID_MAX
        )
        raise _wrong_id(at, "out of range" if type(item) is int else kind(item)) from None


def read_many_ids(data: bytes) -> tuple[int, ...]:
    """Token ids from the JSON of a long list that has no text in it: nothing else is built. Raises InvalidRequest."""
    if data.count(b",") >= MAX_PROMPT_IDS:
        raise too_much("prompt", f"has more than {MAX_PROMPT_IDS} token ids, which is the limit")
    nested = data[1:].lstrip()[:1] == b"["
    if nested and (lists := data.count(b"[") - 1) > 1:
        raise _several(lists)
    try:
        if not nested:
            return tuple(_many_ids(data))
        prompts = _one_of_many_ids(data)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        got = text.rpartition("got `")[2].split("`")[0] if "got `" in text else ""
        raise _wrong_id(int(place[1]) if place else 0, kind(_KINDS[got]) if got in _KINDS else "out of range") from None
    return tuple(prompts[0])


def _several(count: int) -> InvalidRequest:
    return InvalidRequest(
        f"'prompt' is a list of {count} prompts; only one prompt in a request is supported yet",
        param="prompt",
        code="unsupported_value",
    )


def _wrong_id(at: int, problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"'prompt[{at}]' is {problem}; 'prompt' must be a string, or a list of token ids from 0 to {TOKEN_ID_MAX}",
        param="prompt",
    )
