"""One model's tokenizer and chat template: short texts are encoded in place, long ones in a thread."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import structlog

from enginehouse.adapters.tokenizer.backend import open_fast, open_library
from enginehouse.adapters.tokenizer.content import eos_token_ids, read_content
from enginehouse.adapters.tokenizer.decoding import Decoding
from enginehouse.adapters.tokenizer.errors import TokenizerError
from enginehouse.adapters.tokenizer.files import find_files
from enginehouse.adapters.tokenizer.templates import ChatTemplates, find_templates, with_template
from enginehouse.core.tokenizer_files import digest
from enginehouse.domain.errors import ContextLengthExceeded, InvalidRequest
from enginehouse.ports import EncodedChat, TextDecoder

log = structlog.get_logger("enginehouse.tokenizer")

_VAST: Final = 1_000_000
"""Characters above which a text is encoded alone, and counted in pieces first: encoding takes 30 bytes of memory for
each token, whether the prompt is refused then or not."""
_PIECE: Final = 256 * 1024
_MARGIN: Final = 2
"""Where a text is cut for counting a few tokens come out otherwise; never twice as many."""
_TAIL: Final = 256
_SLOWER: Final = 20
"""How many times slower the reference library is than the fast one, roughly."""


@dataclass(frozen=True)
class TokenizerSettings:
    """How texts become token ids."""

    inline_characters: int = 64_000
    """Texts up to this many characters are encoded on the event loop, which takes from a quarter of a millisecond to
    one, by the model. Longer ones go to a thread."""
    segment_cache_mib: int = 16
    """Memory, in MiB, for the ids of earlier messages: a chat that goes on is then encoded only where it is new. 0
    switches it off."""


@cache
def _threads() -> ThreadPoolExecutor:
    # Both libraries let other threads run while they encode. Two: one very long prompt does not hold up the next.
    return ThreadPoolExecutor(2, thread_name_prefix="encode")


@cache
def _thread_for_vast() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="encode-vast")


class ModelTokenizer:
    """See ports.Tokenizer."""

    def __init__(
        self, files: Mapping[str, bytes], settings: TokenizerSettings, chat_template: bytes | None = None
    ) -> None:
        """Raises TokenizerError. Takes up to a second or two for a large vocabulary: call it in a thread.

        chat_template: source of one to be used instead of the model's own.
        """
        tokenizer_json = files.get("tokenizer.json")
        if tokenizer_json is None:
            raise TokenizerError(f"there is no tokenizer.json among {', '.join(sorted(files)) or 'no files'}")
        content = read_content(tokenizer_json)
        self.digest = digest(files) or ""
        self.vocab_size = len(content.tokens)
        self.eos_token_ids = eos_token_ids(files, content)
        self.template_problem: str | None = None
        """Why there is no usable chat template; None when there is one."""
        self._template = self._open_template(files, chat_template)

        library = open_library(tokenizer_json)
        special = [token for number in sorted(content.special) if (token := content.tokens[number])]
        fast = open_fast(tokenizer_json, library, special, settings.segment_cache_mib << 20)
        self._encoder = library if fast is None else fast
        self._inline = settings.inline_characters // (_SLOWER if fast is None else 1)
        self._decoding = Decoding(content, library)
        self.fast = fast is not None
        del library, fast, content
        _give_back()

    def _open_template(self, files: Mapping[str, bytes], named: bytes | None) -> ChatTemplates | None:
        """A template of the model's that is broken leaves completions; one that was named has to work."""
        if named is not None:
            return find_templates(with_template(files, named))
        try:
            template = find_templates(files)
        except TokenizerError as error:
            self.template_problem = str(error)
            log.warning("chat template unusable, chat requests are refused", reason=str(error))
            return None
        if template is None:
            self.template_problem = "this model has no chat template"
        return template

    async def encode(self, text: str, *, add_special_tokens: bool, at_most: int | None = None) -> Sequence[int]:
        return await self._ids(text, add_special_tokens, at_most, "prompt")

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], at_most: int | None = None
    ) -> EncodedChat:
        if self._template is None:
            raise InvalidRequest(
                f"{self.template_problem}; use /v1/completions, or a tokenizer folder with a template", param="messages"
            )
        text = self._template.render(messages, options)
        return EncodedChat(await self._ids(text, False, at_most, "messages"), text[-_TAIL:])

    async def _ids(self, text: str, add_special_tokens: bool, at_most: int | None, param: str) -> Sequence[int]:
        if len(text) <= self._inline:
            return self._encode(text, add_special_tokens)
        loop = asyncio.get_running_loop()
        if len(text) <= _VAST:
            return await loop.run_in_executor(_threads(), self._encode, text, add_special_tokens)
        return await loop.run_in_executor(
            _thread_for_vast(), self._encode_vast, text, add_special_tokens, at_most, param
        )

    def _encode_vast(self, text: str, add_special_tokens: bool, at_most: int | None, param: str) -> Sequence[int]:
        if at_most is not None and len(text) > _MARGIN * at_most:
            count = 0
            for start in range(0, len(text), _PIECE):
                count += len(self._encode(text[start : start + _PIECE], False))
                if count > _MARGIN * at_most:
                    raise ContextLengthExceeded(
                        f"the prompt has more than {at_most} tokens, the most that this model takes", param=param
                    )
        return self._encode(text, add_special_tokens)

    def decoder(
        self, *, skip_special_tokens: bool = True, shown: frozenset[str] = frozenset(), continues: bool = False
    ) -> TextDecoder:
        return self._decoding.decoder(skip_special_tokens, shown, continues)

    def token_text(self, token_id: int) -> str:
        return self._decoding.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._decoding.token_bytes(token_id)

    @property
    def chat_template(self) -> str | None:
        return None if self._template is None else self._template.source

    def _encode(self, text: str, add_special_tokens: bool) -> Sequence[int]:
        ids: Sequence[int] = self._encoder.encode(text, add_special_tokens=add_special_tokens).ids
        return ids


def load_tokenizer(
    source: str | None = None,
    files: Mapping[str, bytes] | None = None,
    settings: TokenizerSettings | None = None,
    chat_template: Path | None = None,
) -> ModelTokenizer:
    """From files that an engine handed out if there are any, else from `source`.

    source: a folder, or a model id whose files are in the local hub cache. chat_template: file with one to be used
    instead of the model's own. Raises TokenizerError. Takes up to a second or two: call it in a thread.
    """
    if not files:
        if not source:
            raise TokenizerError("the engine hands out no tokenizer and none is configured; give --tokenizer")
        files = find_files(source)
    try:
        template = chat_template.read_bytes() if chat_template is not None else None
    except OSError as error:
        raise TokenizerError(f"the chat template {chat_template} cannot be read: {error.strerror}") from error
    tokenizer = ModelTokenizer(files, settings or TokenizerSettings(), template)
    log.info("tokenizer loaded", tokens=tokenizer.vocab_size, fast=tokenizer.fast, digest=tokenizer.digest[:12])
    return tokenizer


def _give_back() -> None:
    """Loading a large vocabulary takes ten times what stays; without this the process keeps it all."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # not glibc
        log.debug("memory is not given back by hand on this platform")
