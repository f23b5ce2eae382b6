"""The `prompt` of a text completion: a text or a list of token ids, or a list of either."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from enginehouse.core.openai.bounds import MAX_PROMPT_IDS, MAX_PROMPTS
from enginehouse.core.openai.fields import TOKEN_ID_MAX, TokenId
from enginehouse.core.openai.refusals import kind, too_much, wrong_value
from enginehouse.domain.errors import InvalidRequest

Prompt = str | tuple[int, ...]

_ids: Final = msgspec.json.Decoder(list[TokenId]).decode
_lists_of_ids: Final = msgspec.json.Decoder(list[list[TokenId]]).decode
_PLACE: Final = re.compile(r"- at `\$((?:\[\d+\])*)`$")
_KINDS: Final[dict[str, Any]] = {"null": None, "bool": True, "float": 0.5, "str": "", "array": [], "object": {}}


def read_prompts(prompt: Any) -> tuple[Prompt, ...]:
    """At least one, all of one kind. Raises InvalidRequest."""
    if isinstance(prompt, tuple):  # of read_many_ids
        return _filled(prompt)
    several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    items = prompt if several else [prompt]
    _few(len(items))
    if not isinstance(items[0], str | list):
        raise wrong_value("prompt", prompt)
    first = type(items[0])
    for at, item in enumerate(items):
        if type(item) is not first:
            raise InvalidRequest(
                f"'prompt[{at}]' is {kind(item)}; all prompts must be {'strings' if first is str else 'token ids'}, "
                "as the first one is",
                param="prompt",
            )
    if first is str:
        return _filled(tuple(items))
    return _filled(tuple([_checked(item, f"prompt[{at}]" if several else "prompt") for at, item in enumerate(items)]))


def read_many_ids(data: bytes) -> tuple[tuple[int, ...], ...]:
    """Prompts from the JSON of a long list that has no text in it: nothing else is built. Raises InvalidRequest."""
    if data.count(b",") >= MAX_PROMPT_IDS:
        raise too_much("prompt", f"has more than {MAX_PROMPT_IDS} token ids, which is the limit")
    nested = data[1:].lstrip()[:1] == b"["
    if nested:
        _few(data.count(b"[") - 1)
    try:
        return tuple(map(tuple, _lists_of_ids(data))) if nested else (tuple(_ids(data)),)
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        got = text.rpartition("got `")[2].split("`")[0] if "got `" in text else ""
        where = f"prompt{place[1]}" if place else "prompt"
        raise _wrong_id(where, kind(_KINDS[got]) if got in _KINDS else "out of range") from None


def _few(count: int) -> None:
    if count > MAX_PROMPTS:
        raise too_much("prompt", f"is a list of {count} prompts; at most {MAX_PROMPTS} are taken")


def _filled(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    for at, prompt in enumerate(prompts):
        if not prompt:
            where = "prompt" if len(prompts) == 1 else f"prompt[{at}]"
            raise InvalidRequest(f"'{where}' is empty; it must hold at least one character or token", param="prompt")
    return prompts


def _checked(ids: list[Any], where: str) -> tuple[int, ...]:
    try:
        return tuple(msgspec.convert(ids, list[TokenId]))
    except msgspec.ValidationError:
        at, item = next(
            (at, item) for at, item in enumerate(ids) if type(item) is not int or not 0 <= item <= TOKEN_ID_MAX
        )
        raise _wrong_id(f"{where}[{at}]", "out of range" if type(item) is int else kind(item)) from None


def _wrong_id(where: str, problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{where}' is {problem}; a prompt must be a string, or a list of token ids from 0 to {TOKEN_ID_MAX}",
        param="prompt",
    )
