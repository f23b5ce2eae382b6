"""Batches on the wire: byte for byte what SGLang's structs gave, key for key what a real vLLM published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from enginehouse.domain.engine import ProtocolName
from enginehouse.mock.kv.encode import GARBAGE, encoder, signed, unsigned
from enginehouse.mock.kv.news import Cleared, News, Removed, Stored
from enginehouse.mock.settings import MockSettings


def key(first: int, last: int) -> bytes:
    """One whose SGLang hash is `first` and whose vLLM hash is `last`."""
    return first.to_bytes(8, "big", signed=True) + last.to_bytes(8, "big")


A, B = key(-5, 2**64 - 1), key(7, 7)
NEWS: list[News] = [Stored([A], None, [1, 2]), Removed([B]), Cleared()]


def encode(protocol: ProtocolName, news: Sequence[News] = NEWS, *, bad: bool = False, **settings: Any) -> bytes:
    return encoder(MockSettings(protocol=protocol, block_size=2, **settings))(1.5, news, 0, bad)


def test_sglang_as_0_5_23_and_as_before_0_5_20() -> None:
    """Golden vectors: made with each release's own structs."""
    assert encode(ProtocolName.SGLANG).hex() == (
        "93cb3ff80000000000009387a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391fbb1706172656e745f626c"
        "6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055"
        "83a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d656469756da347505581a474797065b0416c"
        "6c426c6f636b73436c656172656400"
    )
    assert encode(ProtocolName.SGLANG, kv_events_old=True).hex() == (
        "93cb3ff80000000000009397ab426c6f636b53746f72656491fbc092010202c0a347505593ac426c6f636b52656d6f7665649107a347"
        "505591b0416c6c426c6f636b73436c656172656400"
    )


VLLM_0_33_0 = bytes.fromhex(
    "93cb3ff800000000000093de000ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfffffffffffffffffb1"
    "706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d65"
    "6469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739191a3616263a967726f75705f69647800b26b765f63616368"
    "655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173"
    "6865739107a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)


@pytest.mark.parametrize("protocol", [ProtocolName.VLLM, ProtocolName.VLLM_NATIVE])
def test_vllm_as_0_33_0(protocol: ProtocolName) -> None:
    """The golden vector's block has an extra key; a plain prompt's has nil there, and all else is the same."""
    golden = msgspec.msgpack.decode(VLLM_0_33_0)
    golden[1][0]["extra_keys"] = [None]
    ours = msgspec.msgpack.decode(encode(protocol))
    assert ours == golden
    assert [list(event) for event in ours[1]] == [list(event) for event in golden[1]]


def test_vllm_arrays_have_the_same_fields_in_order() -> None:
    ours = msgspec.msgpack.decode(encode(ProtocolName.VLLM, kv_events_old=True))
    assert ours[1] == [
        ["BlockStored", [2**64 - 1], None, [1, 2], 2, None, "GPU", None, [None], 0, "full_attention"],
        ["BlockRemoved", [7], "GPU", 0],
        ["AllBlocksCleared"],
    ]


@pytest.mark.parametrize(
    ("protocol", "hashes"),
    [(ProtocolName.SGLANG, [[-5, 7]]), (ProtocolName.VLLM, [[2**64 - 1], [7]])],
)
def test_removals_are_one_each_in_vllm_and_together_in_sglang(protocol: ProtocolName, hashes: list[list[int]]) -> None:
    events = msgspec.msgpack.decode(encode(protocol, [Removed([A, B])]))[1]
    assert [event["block_hashes"] for event in events] == hashes


def test_a_run_tells_its_parent() -> None:
    (event,) = msgspec.msgpack.decode(encode(ProtocolName.SGLANG, [Stored([A, B], B, [1, 2, 3, 4])]))[1]
    assert event["parent_block_hash"] == signed(B)
    assert event["block_hashes"] == [signed(A), signed(B)]
    assert event["token_ids"] == [1, 2, 3, 4]
    assert (signed(A), unsigned(A)) == (-5, 2**64 - 1)


def test_a_malformed_event_stands_before_the_others() -> None:
    for old in (False, True):
        first, *rest = msgspec.msgpack.decode(encode(ProtocolName.VLLM, bad=True, kv_events_old=old))[1]
        assert rest == msgspec.msgpack.decode(encode(ProtocolName.VLLM, kv_events_old=old))[1]
        assert len(first) == 2


def test_garbage_is_no_msgpack() -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(GARBAGE)
