"""Header blocks of requests, as any decoder reads them: a new one, a used one, one that may keep nothing."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.wire.grpc_request import RequestBlocks, check_metadata, encode_timeout

PATH = "/s/M"
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.-", min_size=1, max_size=200)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20_000)


def blocks(scheme: str = "http", authority: str = "engine:1") -> RequestBlocks:
    return RequestBlocks(scheme=scheme, authority=authority, user_agent="grpc-enginehouse")


def fields(path: str = PATH, scheme: str = "http", authority: str = "engine:1") -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-enginehouse"),
    ]


def decoder(limit: int = 4096) -> Decoder:
    made = Decoder(max_header_list_size=1 << 24)
    made.max_allowed_table_size = limit
    return made


def used() -> Decoder:
    """One that has read blocks of a client that does use its table."""
    made = decoder()
    made.decode(Encoder().encode([("user-agent", "another"), ("te", "trailers"), ("x", "y")]))
    assert made.header_table.dynamic_entries
    return made


def read(peer: Decoder, block: bytes) -> list[tuple[str, str]]:
    return [tuple(field) for field in peer.decode(block)]


calls = st.tuples(
    st.sampled_from(["/s/M", "/s/Other", "/" + "p" * 300]),
    st.lists(st.tuples(NAMES, VALUES), max_size=3),
    st.none() | st.floats(0.001, 1e9),
)


@given(
    st.sampled_from(["http", "https"]),
    st.sampled_from(["engine:1", "[::1]:30000", "h" * 130 + ":1"]),
    st.lists(calls, min_size=1, max_size=5),
    st.sampled_from([0, 100, 4096]),
)
def test_every_decoder_reads_exactly_the_fields(
    scheme: str, authority: str, asked: list[tuple[str, list[tuple[str, str]], float | None]], limit: int
) -> None:
    writer = blocks(scheme, authority)
    peers = [decoder(limit), used()]
    for path, metadata, timeout in asked:
        block = writer.block(path, metadata, timeout)
        deadline = [] if timeout is None else [("grpc-timeout", encode_timeout(timeout))]
        for peer in peers:
            assert read(peer, block) == fields(path, scheme, authority) + deadline + metadata
            assert not peer.header_table.dynamic_entries
            assert peer.header_table_size == 0


def test_a_limit_that_shrinks_between_two_calls_is_kept() -> None:
    writer, peer = blocks(), decoder(65_536)
    assert read(peer, writer.block(PATH)) == fields()
    peer.max_allowed_table_size = 0
    assert read(peer, writer.block(PATH)) == fields()


def test_a_table_is_given_up_once_and_then_blocks_are_the_same_bytes() -> None:
    writer = blocks()
    first, second, third = (writer.block(PATH) for _ in range(3))
    assert first == b"\x20" + second
    assert second is third


def test_metadata_may_not_be_indexed_by_anybody_on_the_way() -> None:
    block = blocks().block(PATH, [("authorization", "Bearer x")], 1.0)
    kept_apart = {field[0] for field in decoder().decode(block) if isinstance(field, NeverIndexedHeaderTuple)}
    assert kept_apart == {"authorization"}


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 16_383, 16_384])
@pytest.mark.parametrize("name", ["x-key", "user-agent", ":path"])
def test_lengths_around_the_steps_of_the_coding(name: str, length: int) -> None:
    block = blocks().block(PATH, [(name, "v" * length), ("n" * (length or 1), "v")])
    found = decoder().decode(block)
    assert [tuple(field) for field in found] == [*fields(), (name, "v" * length), ("n" * (length or 1), "v")]
    assert all(isinstance(field, NeverIndexedHeaderTuple) for field in found[len(fields()) :])


def test_metadata_and_deadline_of_one_call_are_not_those_of_the_next() -> None:
    writer, peer = blocks(), decoder()
    read(peer, writer.block(PATH, [("x-key", "secret")], 1.5))
    assert read(peer, writer.block(PATH)) == fields()


def test_paths_that_are_made_up_do_not_fill_the_memory() -> None:
    writer, peer = blocks(), decoder()
    for number in range(1000):
        assert read(peer, writer.block(f"/s/{number}")) == fields(f"/s/{number}")
    assert len(writer._common) <= 64


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.5, "1500000u"),
        (0.0, "1u"),
        (99.999999, "99999999u"),
        (100.0, "100000m"),
        (100_000.0, "100000S"),
        (1e8, "27778H"),
        (1e15, "99999999H"),
    ],
)
def test_deadlines_have_at_most_eight_digits(seconds: float, text: str) -> None:
    assert encode_timeout(seconds) == text


@pytest.mark.parametrize(
    "pair", [("Upper", "x"), ("grpc-timeout", "x"), ("key-bin", "x"), ("", "x"), (":path", "x"), ("x", "a\nb")]
)
def test_metadata_that_must_not_go_out_is_the_callers_fault(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        check_metadata([pair])
