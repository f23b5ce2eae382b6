"""KV events over the engine's link: connected by proof, begun anew after a break, over when the engine has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from smg_grpc_proto.generated import common_pb2 as pb

from enginehouse.adapters.engines import kv_link
from enginehouse.adapters.engines.kv_link import LinkKvSubscription
from enginehouse.domain.kv import Cleared
from enginehouse.domain.link import LinkError, LinkErrorKind
from tests.contract.kv_peers import Heard
from tests.unit.adapters.engines.doubles import FakeLink, golden, messages, status_error

PATH = "/a/SubscribeKvEvents"
LOAD_ONLY = pb.KvEventBatch(load=pb.EngineLoad(load_only=True)).SerializeToString()
CLOSED = LinkError(LinkErrorKind.CLOSED, "the link was closed", may_have_been_processed=True)
LOST = LinkError(LinkErrorKind.LOST, "reset by peer", may_have_been_processed=True)


def batch(number: int, rank: int | None = None) -> bytes:
    made: bytes = pb.KvEventBatch(
        sequence_number=number, dp_rank=rank, events=[pb.KvCacheEvent(cleared=pb.KvCacheCleared())]
    ).SerializeToString()
    return made


def run(test: Callable[[FakeLink, Heard, LinkKvSubscription], Any], *, rank: int = 0) -> None:
    async def go() -> None:
        link, heard = FakeLink(), Heard()
        subscription = LinkKvSubscription(link, PATH, heard, rank)
        assert not heard.told
        await test(link, heard, subscription)
        subscription.close()

    asyncio.run(go())


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_link, "_FIRST_PAUSE", 0.0)


async def reopened(link: FakeLink, calls: int) -> None:
    while len(link.calls) < calls:
        await asyncio.sleep(0)


def test_it_asks_for_everything_from_now_on_and_for_a_sign_of_life() -> None:
    async def test(link: FakeLink, heard: Heard, _: LinkKvSubscription) -> None:
        (call,) = link.calls
        request = pb.SubscribeKvEventsRequest.FromString(call.message)
        assert (call.path, call.timeout) == (PATH, None)
        assert request == pb.SubscribeKvEventsRequest(load_records_before_first_batch=True)

    run(test)


def test_header_fields_are_the_proof_and_load_records_are_no_batches() -> None:
    async def test(link: FakeLink, heard: Heard, subscription: LinkKvSubscription) -> None:
        link.calls[0].answer()
        assert heard.told == ["connected"]
        sink = link.calls[0].sink
        sink.on_message(LOAD_ONLY)
        assert heard.told == ["connected"]
        sink.on_message(batch(59, 1))
        sink.on_message(LOAD_ONLY)
        sink.on_message(batch(60))
        assert heard.told == ["connected", "59", "60"]
        assert [rank for rank, _, _ in heard.live] == [1, 8]
        assert subscription.decode(heard.live[0][2]).events == [Cleared()]

    run(test, rank=8)


def test_what_the_real_servicer_sent() -> None:
    async def test(link: FakeLink, heard: Heard, _: LinkKvSubscription) -> None:
        for case in golden("vllm-0.32.0-kv").values():
            for message in messages(case):
                link.calls[0].sink.on_message(message)
        assert heard.told == ["59", "60", "61"]

    run(test)


@pytest.mark.parametrize("end", [status_error("DATA_LOSS", "gap on rank 0"), LOST, None])
def test_k2_a_stream_that_ends_is_lost_and_asked_for_again(end: LinkError | None) -> None:
    async def test(link: FakeLink, heard: Heard, _: LinkKvSubscription) -> None:
        link.calls[0].answer()
        link.calls[0].sink.on_message(batch(3))
        link.calls[0].sink.on_end(end)
        assert heard.told == ["connected", "3", "lost"]
        reason, permanent = heard.lost[0]
        assert not permanent
        assert end is None or end.text in reason
        await reopened(link, 2)
        assert heard.told[3:] == []
        link.calls[1].answer()
        assert heard.told[3:] == ["connected"]
        link.calls[1].sink.on_message(batch(0))
        assert heard.told[4:] == ["0"]

    run(test)


def test_k6_an_engine_without_events_is_lost_for_good_and_says_what_to_do() -> None:
    async def test(link: FakeLink, heard: Heard, _: LinkKvSubscription) -> None:
        link.calls[0].sink.on_end(status_error("UNIMPLEMENTED", "KV cache events have no publisher to relay"))
        reason, permanent = heard.lost[0]
        assert permanent
        assert "--kv-events-config" in reason
        assert "no publisher to relay" in reason
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(link.calls) == 1

    run(test)


def test_k6_an_engine_without_events_is_asked_again_some_time_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_link, "_WITHOUT_EVENTS", 0.0)

    async def test(link: FakeLink, heard: Heard, _: LinkKvSubscription) -> None:
        link.calls[0].sink.on_end(status_error("UNIMPLEMENTED"))
        await reopened(link, 2)
        link.calls[1].answer()
        link.calls[1].sink.on_message(batch(0))
        assert heard.told == ["lost", "connected", "0"]

    run(test)


def test_a_closed_link_is_not_asked_again() -> None:
    async def test(link: FakeLink, heard: Heard, _: LinkKvSubscription) -> None:
        link.calls[0].sink.on_end(CLOSED)
        assert heard.lost[0][1]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(link.calls) == 1

    run(test)


def test_a_message_that_cannot_be_read_breaks_the_stream_off() -> None:
    async def test(link: FakeLink, heard: Heard, _: LinkKvSubscription) -> None:
        link.calls[0].sink.on_message(b"\xff\xff\xff")
        assert heard.told == ["lost"]
        assert link.calls[0].did == ["cancel"]
        await reopened(link, 2)

    run(test)


def test_waits_double_up_to_a_limit_and_begin_anew_after_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_link, "_FIRST_PAUSE", 0.5)
    monkeypatch.setattr(kv_link.random, "uniform", lambda low, high: high)
    waits: list[float] = []

    async def test(link: FakeLink, heard: Heard, subscription: LinkKvSubscription) -> None:
        monkeypatch.setattr(
            subscription._loop, "call_later", lambda wait, what: waits.append(wait) or asyncio.get_running_loop()
        )
        sink = link.calls[0].sink
        for _ in range(7):
            sink.on_end(LOST)
        sink.on_message(LOAD_ONLY)
        sink.on_end(LOST)
        subscription._timer = None
        assert waits == [0.5, 1, 2, 4, 8, 10, 10, 0.5]

    run(test)


def test_closed_it_says_nothing_more() -> None:
    async def test(link: FakeLink, heard: Heard, subscription: LinkKvSubscription) -> None:
        sink = link.calls[0].sink
        subscription.replay(0, 1)
        subscription.close()
        assert link.calls[0].did == ["cancel"]
        link.calls[0].answer()
        sink.on_message(batch(1))
        sink.on_end(LOST)
        subscription.close()
        subscription.replay(0, 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not heard.told
        assert len(link.calls) == 1

    run(test)


@pytest.mark.parametrize("moment", ["connected", "lost"])
def test_a_sink_may_close_from_inside_a_callback(moment: str) -> None:
    async def go() -> None:
        class Closing(Heard):
            def _tell(self, word: str) -> None:
                super()._tell(word)
                if word == moment:
                    subscription.close()

        link, heard = FakeLink(), Closing()
        subscription = LinkKvSubscription(link, PATH, heard, 0)
        if moment == "connected":
            link.calls[0].answer()
            link.calls[0].sink.on_message(batch(1))
        else:
            link.calls[0].sink.on_end(LOST)
        for _ in range(20):
            await asyncio.sleep(0)
        assert heard.told == [moment]
        assert len(link.calls) == 1

    asyncio.run(go())


def test_there_is_no_replay_and_asking_ends_at_once() -> None:
    async def test(link: FakeLink, heard: Heard, subscription: LinkKvSubscription) -> None:
        assert not subscription.can_replay
        subscription.replay(2, 0)
        assert not heard.told
        await asyncio.sleep(0)
        assert heard.ends == [(2, False)]

    run(test)
