"""Text to ids: `fastokens` where it gives the ids of `tokenizers`, which is checked at load; else `tokenizers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import fastokens
import structlog
from tokenizers import Tokenizer as LibraryTokenizer

from enginehouse.adapters.tokenizer.errors import TokenizerError

log = structlog.get_logger("enginehouse.tokenizer")

Encode = Callable[[str, bool], Sequence[int]]
"""(text, add special tokens) to ids."""

SAMPLES: Final = (
    "",
    " ",
    "Hello, world! It's 12:45 and we'll've been here for 1234567 years.",
    "  leading, trailing and   inner spaces  \n\n\ttabs\t\t\r\nand\r\rline ends \n \n",
    'def f(x: int) -> str:\n    return f"{x!r}"  # comment\n\n\nclass A:\n\tpass\n',
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9\\n"} <tag attr=\'1\'/> a_b-c.d@e http://x.y/?z=%20&w',
    "Größe, façade, naïve, ÅNGSTRÖM, ﬁne, ẞ, ｆｕｌｌ ｗｉｄｔｈ, e\u0301 and é, ½ ² ∑ ≠ … – — “quoted”",
    "你好，世界。今日はいい天気ですね。안녕하세요 สวัสดีครับ مرحبا بالعالم שלום नमस्ते Привет Γειά",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪 🚂 ❤️ \u200b\u200d\ufeff\u00a0\u2028 \x00\x07\x1b �",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa !!!!!!!!!!!!!!!! ________________",
    "CamelCaseAndSCREAMINGCase mixedWith123Numbers4and56more   \u3000ideographic space",
)
"""Texts on which the splitting rules of models differ."""


def open_library(tokenizer_json: bytes) -> LibraryTokenizer:
    """The reference. Raises TokenizerError."""
    try:
        library: LibraryTokenizer = LibraryTokenizer.from_str(tokenizer_json.decode())
    except Exception as error:  # the library raises plain Exception for whatever it does not understand
        raise TokenizerError(f"tokenizer.json is not understood: {error}") from error
    # A file may carry the settings of its training: a prompt is never cut or padded here.
    library.no_truncation()
    library.no_padding()
    return library


def open_fast(tokenizer_json: bytes, library: LibraryTokenizer, special: Sequence[str], cache_bytes: int) -> Any | None:
    """`fastokens`, if it agrees with the reference on every sample; else None, with the reason in the log."""
    try:
        fast = fastokens.Tokenizer.from_json_str(tokenizer_json.decode())
        fast.no_truncation()
        fast.no_padding()
        if cache_bytes:
            fast.enable_segment_cache(cache_bytes)
        for sample in (*SAMPLES, *_with_special(special)):
            for add in (False, True):
                want = library.encode(sample, add_special_tokens=add).ids
                # Twice: the second comes from its cache.
                if any(fast.encode(sample, add_special_tokens=add).ids != want for _ in range(2)):
                    log.warning("fast tokenizer disagrees, using the slower one", sample=sample[:40])
                    return None
    except Exception as error:  # as above; nothing it cannot do may keep a model from being served
        log.warning("fast tokenizer cannot be used, using the slower one", reason=f"{type(error).__name__}: {error}")
        return None
    return fast


def _with_special(special: Sequence[str]) -> list[str]:
    some = special[:24]
    return [
        f"{token}user\nHi {token} there,{token}{token} {' '.join(some[:3])} {token[:-1]} {token.lower()}\n {token}"
        for token in some
    ]
