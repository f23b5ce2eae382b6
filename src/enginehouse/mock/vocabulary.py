"""Which tokens a mock engine says: a function of prompt and position alone, the same on every engine."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STRIDE = 389
"""Step through the words from one position to the next; prime, so that an answer meets all of them before repeating."""

BUNDLED = Path(__file__).parent / "model"


@dataclass(frozen=True)
class Vocabulary:
    """The ids a mock engine may output, and what it must know of its tokenizer."""

    words: tuple[int, ...]
    """Ids of readable, whole words; never special ones."""
    size: int
    """Ids from 0 to here exist."""
    eos: int
    folder: Path

    def seed(self, prompt: Sequence[int]) -> int:
        """What makes the answers to different prompts differ."""
        digest = hashlib.blake2b(array("I", prompt).tobytes(), digest_size=4).digest()
        return int.from_bytes(digest, "big")

    def token(self, seed: int, position: int) -> int:
        """The output token at a position of the answer, counted from 0."""
        return self.words[(seed + position * _STRIDE) % len(self.words)]

    def answer(self, prompt: Sequence[int], length: int) -> list[int]:
        """The first `length` tokens of the answer to a prompt: what a client should receive from any mock engine."""
        seed = self.seed(prompt)
        return [self.token(seed, position) for position in range(length)]


def load_vocabulary(folder: Path | None = None) -> Vocabulary:
    """Read the tokenizer of a model folder; None: the bundled one."""
    folder = folder or BUNDLED
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {entry["content"]: int(entry["id"]) for entry in content.get("added_tokens", ())}
    vocabulary: dict[str, int] = content["model"]["vocab"]
    special = set(added.values())
    words = [number for text, number in vocabulary.items() if number not in special and _is_word(text)]
    if not words:
        words = [number for number in vocabulary.values() if number not in special and number >= 300]
    size = 1 + max((*vocabulary.values(), *special))
    return Vocabulary(tuple(sorted(words)), size, _eos(folder, added), folder)


def _is_word(text: str) -> bool:
    """Starts with the mark of a space (byte-level or SentencePiece) and goes on with at least three ASCII letters."""
    return len(text) > 3 and text[0] in "Ġ▁" and text[1:].isascii() and text[1:].isalpha()


def _eos(folder: Path, added: dict[str, int]) -> int:
    path = folder / "tokenizer_config.json"
    token = json.loads(path.read_text(encoding="utf-8")).get("eos_token") if path.exists() else None
    if isinstance(token, dict):
        token = token.get("content")
    return added.get(token, 2) if isinstance(token, str) else 2
