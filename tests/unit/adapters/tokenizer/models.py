"""Small tokenizers of every family, trained here on a few lines: real files without any model."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BUNDLED = Path(__file__).parents[4] / "src" / "enginehouse" / "mock" / "model"

LINES = [
    "the quick brown fox jumps over the lazy dog and the engines come home in the evening",
    "one two three four five six seven eight nine ten eleven twelve 0123456789",
    "def main() -> None:\n    print('hello, world')\n\n\nif x == 1:\n\treturn {}\n",
    "Größe, façade, naïve,你好世界, こんにちは, สวัสดี, Привет, 🚂 🎉 and so on",
] * 3


@cache
def byte_level() -> Tokenizer:
    """As GPT-2 and all its children; two special tokens, one added token that is not special and has a space in it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|end|>", "<|turn|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(LINES, trainer)
    bpe.add_tokens([AddedToken("<two words>", special=False), AddedToken("<ünïcode>", special=False)])
    return bpe


def _sentencepiece_bpe(strip: bool) -> Tokenizer:
    bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    prepend = [normalizers.Prepend("▁")] if strip else []
    bpe.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    end = [decoders.Strip(" ", 1, 0)] if strip else []
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    bpe.train_from_iterator([line.replace(" ", "▁") for line in LINES[:3]], trainer)
    # Trained as special so that they get ids; in real files the byte tokens are plain vocabulary.
    content = json.loads(bpe.to_str())
    content["added_tokens"] = [entry for entry in content["added_tokens"] if entry["id"] < 3]
    bpe = Tokenizer.from_str(json.dumps(content))
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bpe.token_to_id("<s>"))]
    )
    return bpe


@cache
def byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral: the first space of a text is dropped again."""
    return _sentencepiece_bpe(strip=True)


@cache
def byte_fallback_unstripped() -> Tokenizer:
    """As Gemma."""
    return _sentencepiece_bpe(strip=False)


@cache
def word_piece() -> Tokenizer:
    """As BERT: a decoder that is none of ours."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


@cache
def unigram() -> Tokenizer:
    """As T5: Metaspace, and a vocabulary that is a list."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def files(tokenizer: Tokenizer, **companions: Any) -> dict[str, bytes]:
    """A model's files; companions by name without `.json`."""
    return {"tokenizer.json": tokenizer.to_str().encode()} | {
        f"{name}.json": json.dumps(content).encode() for name, content in companions.items()
    }
