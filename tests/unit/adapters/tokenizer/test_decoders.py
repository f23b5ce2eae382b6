from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from enginehouse.adapters.tokenizer import ModelTokenizer, TokenizerSettings
from enginehouse.adapters.tokenizer.content import read_content
from enginehouse.adapters.tokenizer.decoders import ByteFallbackDecoder, ByteLevelDecoder, LibraryDecoder
from enginehouse.adapters.tokenizer.tables import table_for
from enginehouse.ports import TextDecoder
from tests.unit.adapters.tokenizer import models

Family = Callable[[], Tokenizer]

EXACT: list[tuple[Family, type]] = [
    (models.byte_level, ByteLevelDecoder),
    (models.byte_fallback, ByteFallbackDecoder),
    (models.byte_fallback_unstripped, ByteFallbackDecoder),
]
OTHERS: list[Family] = [models.word_piece, models.unigram]
TEXTS = [
    "hello, world",
    "  two  spaces\n\n and a\ttab ",
    "👩‍👩‍👧‍👦 🇩🇪 🚂🎉",
    "你好，世界。今日はいい天気ですね。안녕하세요",
    "สวัสดีครับ ขอบคุณมาก",
    "Größe façade e\u0301 \u0000 \ufffd",
    "<two words> <ünïcode> <|turn|>",
]
_loaded: dict[Family, ModelTokenizer] = {}


def loaded(family: Family) -> ModelTokenizer:
    if family not in _loaded:
        _loaded[family] = ModelTokenizer(models.files(family()), TokenizerSettings())
    return _loaded[family]


def decoder(family: Family, *, skip: bool) -> TextDecoder:
    return loaded(family).decoder(skip_special_tokens=skip)


def streamed(family: Family, deltas: Sequence[Sequence[int]], *, skip: bool = True) -> str:
    text = decoder(family, skip=skip)
    return "".join([text.push(delta) for delta in deltas]) + text.flush()


@pytest.mark.parametrize(("family", "kind"), EXACT)
def test_known_families_are_decoded_by_table(family: Family, kind: type) -> None:
    assert type(decoder(family, skip=True)) is kind


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_are_decoded_by_the_library(family: Family) -> None:
    assert type(decoder(family, skip=True)) is LibraryDecoder


@pytest.mark.parametrize("family", [family for family, _ in EXACT])
@given(data=st.data(), skip=st.booleans())
def test_o2_streamed_equals_batch_for_any_ids_in_any_pieces(family: Family, data: st.DataObject, skip: bool) -> None:
    reference = family()
    size = reference.get_vocab_size()
    # Single bytes (first 300 ids) are drawn as often as words, and some ids that do not exist.
    token = st.integers(0, 299) | st.integers(0, size - 1) | st.integers(size, size + 3)
    deltas = data.draw(st.lists(st.lists(token, max_size=6), max_size=8))
    whole = [number for delta in deltas for number in delta]
    assert streamed(family, deltas, skip=skip) == reference.decode(whole, skip_special_tokens=skip)


@pytest.mark.parametrize("family", [family for family, _ in EXACT] + OTHERS)
@pytest.mark.parametrize("text", TEXTS)
def test_o2_texts_of_many_scripts_come_out_whole(family: Family, text: str) -> None:
    reference = family()
    ids = reference.encode(text, add_special_tokens=False).ids
    for skip in (True, False):
        assert streamed(family, [[number] for number in ids], skip=skip) == reference.decode(
            ids, skip_special_tokens=skip
        )


@pytest.mark.parametrize("family", [models.byte_level, models.byte_fallback])
def test_o2_half_a_character_is_held_and_nothing_else(family: Family) -> None:
    reference = family()
    train = reference.encode("𓀀", add_special_tokens=False).ids[-4:]
    assert len(train) == 4
    word = reference.encode("the dog", add_special_tokens=False).ids
    text = decoder(family, skip=True)
    assert [text.push([number]) for number in train[:3]] == ["", "", ""]
    assert "𓀀" in text.push([train[3]]) + "".join([text.push([number]) for number in word])


@pytest.mark.parametrize("family", [models.byte_level, models.byte_fallback])
def test_o2_the_end_of_a_prompt_never_shows_in_the_answer(family: Family) -> None:
    """A prompt may end in half a character. A decoder knows the answer's ids only, and their half cannot be read."""
    train = family().encode("𓀀", add_special_tokens=False).ids[-4:]
    for cut in (1, 2, 3):
        text = streamed(family, [[number] for number in train[cut:]])
        assert set(text) == {"\ufffd"}


@pytest.mark.parametrize("family", [*(family for family, _ in EXACT), *OTHERS])
def test_o2_a_text_that_goes_on_with_another_one_keeps_its_first_space(family: Family) -> None:
    reference = family()
    before = reference.encode("the", add_special_tokens=False).ids
    size = reference.get_vocab_size()
    after = next(number for number in range(size) if reference.decode([*before, number]).startswith("the "))
    for more in ([[after, *before]], [[after], *([number] for number in before)]):
        text = loaded(family).decoder(continues=True)
        answer = "".join([text.push(one) for one in more]) + text.flush()
        assert "the" + answer == reference.decode([*before, after, *before])


def test_o2_one_bad_byte_spoils_its_run_and_no_more() -> None:
    reference = models.byte_fallback()
    byte = reference.token_to_id
    run = [byte("<0xE4>"), byte("<0xBD>"), byte("<0xA0>"), byte("<0xFF>")]
    good = run[:3]
    space = byte("▁")
    assert streamed(models.byte_fallback, [run]) == "\ufffd" * 4
    text = decoder(models.byte_fallback, skip=True)
    assert [text.push([number]) for number in [*good, space]] == ["", "", "", "你 "]


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    end, turn = 0, 1
    word = models.byte_level().encode("dog").ids
    ids = [turn, *word, end]
    assert streamed(models.byte_level, [ids]) == "dog"
    assert streamed(models.byte_level, [ids], skip=False) == "<|turn|>dog<|end|>"


def test_memory_of_a_decoder_does_not_grow() -> None:
    text = decoder(models.byte_level, skip=True)
    assert isinstance(text, ByteLevelDecoder)
    lead = models.byte_level().encode("𓀀", add_special_tokens=False).ids[0]
    for _ in range(1000):
        text.push([lead])
        assert len(text._open) <= 3


def test_decoders_of_unknown_shape_get_no_table() -> None:
    content = read_content(models.byte_fallback().to_str().encode())
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    shapes = [
        None,
        {"type": "Metaspace"},
        {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}]},
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]},
        {
            "type": "Sequence",
            "decoders": [
                replace,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 1},
            ],
        },
        {
            "type": "Sequence",
            "decoders": [replace | {"pattern": {"Regex": "x"}}, {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
    ]
    for shape in shapes:
        other = type(content)(content.tokens, content.special, shape)
        assert table_for(other) is None
