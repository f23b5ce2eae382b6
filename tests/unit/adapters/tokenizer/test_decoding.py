import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from enginehouse.adapters.tokenizer import ModelTokenizer, TokenizerSettings
from tests.unit.adapters.tokenizer import models

Family = Callable[[], Tokenizer]
ALL: list[Family] = [
    models.byte_level,
    models.byte_fallback,
    models.byte_fallback_unstripped,
    models.word_piece,
    models.unigram,
]
_loaded: dict[Family, ModelTokenizer] = {}


def loaded(family: Family) -> ModelTokenizer:
    if family not in _loaded:
        _loaded[family] = ModelTokenizer(models.files(family()), TokenizerSettings())
    return _loaded[family]


def ids(family: Family, text: str) -> list[int]:
    return list(family().encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("family", [models.byte_level, models.byte_fallback_unstripped])
@given(text=st.text(max_size=30))
def test_o10_the_bytes_of_tokens_joined_are_the_text(family: Family, text: str) -> None:
    tokens = ids(family, text)
    assert b"".join([loaded(family).token_bytes(token) for token in tokens]) == text.encode()


@pytest.mark.parametrize("family", ALL)
def test_o10_a_word_keeps_the_space_before_it(family: Family) -> None:
    dog = ids(family, "the dog")
    tokenizer = loaded(family)
    assert "".join([tokenizer.token_text(token) for token in dog]).strip() == "the dog"


def test_o10_part_of_a_character_has_bytes_and_a_replacement_as_text() -> None:
    for family in (models.byte_level, models.byte_fallback):
        train = ids(family, "𓀀")[-4:]
        tokenizer = loaded(family)
        assert b"".join([tokenizer.token_bytes(token) for token in train]) == "𓀀".encode()
        assert [tokenizer.token_text(token) for token in train] == ["\ufffd"] * 4


@pytest.mark.parametrize("family", ALL)
def test_o10_special_tokens_are_shown_and_unknown_ids_are_nothing(family: Family) -> None:
    tokenizer = loaded(family)
    special = next(entry["content"] for entry in json.loads(family().to_str())["added_tokens"] if entry["special"])
    number = family().token_to_id(special)
    assert (tokenizer.token_text(number), tokenizer.token_bytes(number)) == (special, special.encode())
    for unknown in (tokenizer.vocab_size, 2**31 - 1):
        assert (tokenizer.token_text(unknown), tokenizer.token_bytes(unknown)) == ("", b"")


def test_o10_tokens_of_decoders_without_a_table_are_told_by_the_same_rules() -> None:
    """A step more than we know by table: bytes stay bytes, and the rest is text as the library writes it."""
    content = json.loads(models.byte_fallback().to_str())
    content["decoder"]["decoders"].append({"type": "Strip", "content": "!", "start": 0, "stop": 1})
    tokenizer = ModelTokenizer({"tokenizer.json": json.dumps(content).encode()}, TokenizerSettings())
    library = models.byte_fallback()
    assert tokenizer.token_bytes(library.token_to_id("<0xE4>")) == b"\xe4"
    assert tokenizer.token_bytes(library.token_to_id("▁the▁")) == b" the "
    content = json.loads(models.byte_level().to_str())
    content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"], {"type": "Fuse"}]}
    tokenizer = ModelTokenizer({"tokenizer.json": json.dumps(content).encode()}, TokenizerSettings())
    for token in ids(models.byte_level, "the 𓀀"):
        assert tokenizer.token_bytes(token) == loaded(models.byte_level).token_bytes(token)


@pytest.mark.parametrize("family", ALL)
def test_o6_special_tokens_that_a_format_uses_come_through_and_no_others(family: Family) -> None:
    special = [entry["content"] for entry in json.loads(family().to_str())["added_tokens"] if entry["special"]][:2]
    word = ids(family, "dog")
    library, tokenizer = family(), loaded(family)
    numbers = [library.token_to_id(token) for token in special]
    for shown in ([], special[:1], special[1:], special, [*special, "<unheard of>"]):
        want = [number for number in [numbers[0], *word, *numbers[1:]] if library.id_to_token(number) in shown]
        decoder = tokenizer.decoder(shown=frozenset(shown))
        text = "".join([decoder.push([number]) for number in [numbers[0], *word, *numbers[1:]]]) + decoder.flush()
        kept = [number for number in [numbers[0], *word, *numbers[1:]] if number in want or number in word]
        assert text == library.decode(kept, skip_special_tokens=False)
    everything = tokenizer.decoder(skip_special_tokens=False, shown=frozenset(special[:1]))
    text = everything.push([*numbers, *word]) + everything.flush()
    assert text == library.decode([*numbers, *word], skip_special_tokens=False)
