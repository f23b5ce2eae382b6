"""Blocks that are remembered say what a decoder with no memory of them says."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hpack import Decoder, Encoder, HeaderTuple, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.wire.h2_frames import END_HEADERS
from enginehouse.wire.h2_header_blocks import HeaderBlocks


def decoded(blocks: HeaderBlocks, block: bytes) -> list[tuple[bytes, bytes]]:
    blocks.begin(1, END_HEADERS)
    whole = blocks.add(END_HEADERS, block)
    assert whole is not None
    return whole[2]


fields = st.builds(
    lambda kind, name, value: kind(name, value),
    st.sampled_from([HeaderTuple, NeverIndexedHeaderTuple]),
    st.sampled_from([":status", "grpc-status", "date"]),
    st.sampled_from(["200", "0", "12", "v" * 60]),
)


@given(
    st.lists(st.tuples(st.lists(fields, max_size=3), st.sampled_from([None, None, None, 0, 40, 90, 4096])), max_size=40)
)
def test_what_is_remembered_is_what_a_decoder_says(answers: list[tuple[list[HeaderTuple], int | None]]) -> None:
    encoder, blocks, other = Encoder(), HeaderBlocks(), Decoder()
    for answer, size in answers:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(answer)
        assert decoded(blocks, block) == other.decode(block, raw=True)
        assert list(blocks._decoder.header_table.dynamic_entries) == list(other.header_table.dynamic_entries)


@pytest.mark.parametrize(
    ("answers", "limit"),
    [
        ([(None, "a"), (None, "b"), (None, "a"), (None, "b"), (None, "b")], 50),  # each pushes the other out
        ([(None, "a"), (60, "a"), (4096, "a"), (60, "a"), (None, "b"), (None, "a")], 4096),
    ],
)
def test_a_block_that_changes_the_table_is_never_remembered(answers: list[tuple[int | None, str]], limit: int) -> None:
    encoder, blocks, other = Encoder(), HeaderBlocks(), Decoder()
    encoder.header_table_size = limit
    for size, value in answers:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode([("grpc-status", value)])
        assert decoded(blocks, block) == other.decode(block, raw=True)
        assert list(blocks._decoder.header_table.dynamic_entries) == list(other.header_table.dynamic_entries)


def test_what_every_answer_says_is_decoded_once() -> None:
    encoder, blocks = Encoder(), HeaderBlocks()
    words = [(":status", "200"), ("content-type", "application/grpc")]
    decoded(blocks, encoder.encode(words))
    again = encoder.encode(words)
    assert decoded(blocks, again) == [(b":status", b"200"), (b"content-type", b"application/grpc")]
    with patch.object(Decoder, "decode", side_effect=AssertionError):
        assert decoded(blocks, again) == [(b":status", b"200"), (b"content-type", b"application/grpc")]


def test_the_same_bytes_say_something_else_after_the_table_has_changed() -> None:
    encoder, blocks = Encoder(), HeaderBlocks()
    decoded(blocks, encoder.encode([("date", "one")]))
    newest = encoder.encode([("date", "one")])
    assert decoded(blocks, newest) == [(b"date", b"one")]
    decoded(blocks, encoder.encode([("date", "two")]))
    assert encoder.encode([("date", "two")]) == newest
    assert decoded(blocks, newest) == [(b"date", b"two")]


def test_blocks_that_never_come_again_do_not_fill_the_memory() -> None:
    blocks = HeaderBlocks()
    for number in range(200):
        decoded(blocks, Encoder().encode([NeverIndexedHeaderTuple("grpc-message", str(number))]))
    assert len(blocks._known) <= 32
    decoded(blocks, Encoder().encode([NeverIndexedHeaderTuple("grpc-message", "\0" * 10_000)], huffman=False))
    assert all(len(block) <= 256 for block in blocks._known)
