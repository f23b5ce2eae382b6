"""One answer from its request to its end, and the check that follows an answer that did not come."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable

import pytest
from google.protobuf.message import DecodeError
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginehouse.adapters.engines import EngineConnector, ProbeSettings
from enginehouse.adapters.engines.engine import Engine
from enginehouse.domain.engine import Target
from enginehouse.domain.errors import EngineBroken, EngineFailed, EngineRejected, EngineTimeout, ProbeFailed
from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Finish
from tests.unit.adapters.engines.doubles import FakeCall, FakeLink, Told, status_error
from tests.unit.adapters.engines.test_connect import NO_TOKENIZER, vllm_answers
from tests.unit.adapters.engines.test_vllm_stream import chunk, complete

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
REQUEST = EngineRequest("0" * 32, [1, 2, 3], 8)


def with_engine(test: Callable[[Engine, FakeLink], Awaitable[None]]) -> None:
    async def run() -> None:
        link = FakeLink(vllm_answers(), NO_TOKENIZER)
        engine = await EngineConnector(lambda _: link, ProbeSettings(call_timeout=0.05)).probe(Target("10.0.0.7", 1))
        link.calls.clear()
        await test(engine, link)

    asyncio.run(run())


def begin(engine: Engine, link: FakeLink) -> tuple[Told, FakeCall]:
    told = Told()
    engine.generate(REQUEST, told)
    return told, link.calls[-1]


def test_an_answer_ends_with_its_finish_whatever_comes_after() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        told, call = begin(engine, link)
        assert (call.path, call.timeout) == (GENERATE, None)
        call.sink.on_message(chunk(7))
        assert told.ends == []
        call.sink.on_message(complete(7))
        assert (told.ids, told.finish, told.ends) == ([7], Finish.STOP, [None])
        call.sink.on_message(chunk(8))
        call.sink.on_end(status_error("INTERNAL"))
        assert (told.ids, told.ends) == ([7], [None])

    with_engine(test)


def test_g5_a_stream_that_closes_without_a_finish_is_broken() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        for sent in ((), (chunk(7), chunk(8), chunk(9))):
            told, call = begin(engine, link)
            for message in sent:
                call.sink.on_message(message)
            call.sink.on_end(None)
            assert isinstance(told.error, EngineBroken)

    with_engine(test)


def test_failures_of_the_call_become_engine_errors() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        told, call = begin(engine, link)
        call.sink.on_message(chunk(7))
        call.sink.on_end(LinkError(LinkErrorKind.DEADLINE, "late", may_have_been_processed=True))
        assert isinstance(told.error, EngineTimeout)

    with_engine(test)


def test_an_engine_that_breaks_off_is_cancelled_and_told_of_once() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        for message, kind in ((b"\xff\xff", EngineBroken), (complete(reason="abort"), EngineFailed)):
            told, call = begin(engine, link)
            call.sink.on_message(chunk(7))
            call.sink.on_message(message)
            call.sink.on_end(status_error("INTERNAL"))
            assert isinstance(told.error, kind)
            assert call.did == ["cancel"]

    with_engine(test)


def test_s1_cancelling_resets_the_stream_once_and_only_while_it_is_open() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        told = Told()
        handle = engine.generate(REQUEST, told)
        call = link.calls[-1]
        handle.pause()
        handle.resume()
        handle.cancel()
        handle.cancel()
        call.sink.on_message(chunk(7))
        call.sink.on_end(None)
        assert call.did == ["pause", "resume", "cancel"]
        assert (told.deltas, told.ends) == ([], [])

        told = Told()
        handle = engine.generate(REQUEST, told)
        call = link.calls[-1]
        call.sink.on_message(complete(7))
        call.sink.on_end(None)
        handle.cancel()
        assert (call.did, told.ends) == ([], [None])

    with_engine(test)


def test_a_stream_without_trailers_after_the_finish_can_still_be_reset() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        told = Told()
        handle = engine.generate(REQUEST, told)
        call = link.calls[-1]
        call.sink.on_message(complete(7))
        ended = weakref.ref(told)
        assert told.ends == [None]
        del told
        assert ended() is None, "a finished request is kept alive until its trailers come"
        handle.cancel()
        handle.cancel()
        assert call.did == ["cancel"]

    with_engine(test)


@pytest.mark.parametrize("fault", [RecursionError, OverflowError, KeyError, DecodeError])
def test_whatever_decoding_trips_over_the_engine_is_broken(fault: type[Exception]) -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        told = Told()
        answer = engine.generate(REQUEST, told)

        def decode(_: bytes) -> None:
            raise fault("odd")

        answer._decode = decode  # type: ignore[attr-defined]
        link.calls[-1].sink.on_message(b"")
        assert isinstance(told.error, EngineBroken)
        assert link.calls[-1].did == ["cancel"]

    with_engine(test)


def test_a_request_that_the_protocol_cannot_carry_is_rejected_after_the_call() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        told = Told()
        engine.generate(EngineRequest("0" * 32, [-1, 2**40], 8), told)
        assert told.ends == []
        await asyncio.sleep(0)
        assert isinstance(told.error, EngineRejected)
        assert link.calls == []
        cancelled = Told()
        engine.generate(EngineRequest("0" * 32, [1], -5), cancelled).cancel()
        await asyncio.sleep(0)
        assert cancelled.ends == []

    with_engine(test)


def test_check_reads_the_information_again() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        model = vllm.GetModelInfoResponse(served_model_name="other", is_generation=True)
        link.answers["/vllm.grpc.engine.VllmEngine/GetModelInfo"] = model.SerializeToString()
        assert (await engine.check()).model == "other"
        assert engine.info.model == "other"
        link.answers["/vllm.grpc.engine.VllmEngine/GetModelInfo"] = status_error("UNAVAILABLE", "leaving")
        with pytest.raises(ProbeFailed, match="UNAVAILABLE"):
            await engine.check()

    with_engine(test)


def test_load_is_read_for_each_rank() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        load = (await engine.load())[0]
        assert (load.running, load.waiting, load.total_tokens) == (3, 0, 1000)
        link.answers["/vllm.grpc.engine.VllmEngine/GetLoads"] = status_error("INTERNAL")
        with pytest.raises(EngineFailed):
            await engine.load()

    with_engine(test)


def test_a_lost_connection_is_passed_on_as_text() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        heard: list[str] = []
        engine.on_lost(heard.append)
        for told in link.lost:
            told(LinkError(LinkErrorKind.LOST, "reset by peer", may_have_been_processed=True))
        assert heard == ["reset by peer"]
        await engine.close()
        assert link.closed == 1

    with_engine(test)


def test_abort_by_id() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        link.answers["/vllm.grpc.engine.VllmEngine/Abort"] = b""
        await engine.abort("x")
        assert link.asked[-1] == "/vllm.grpc.engine.VllmEngine/Abort"

    with_engine(test)


def test_g8_the_engine_sees_the_callers_id_and_nothing_else() -> None:
    async def test(engine: Engine, link: FakeLink) -> None:
        for name in ("a" * 32, "b" * 32):
            engine.generate(EngineRequest(name, [1], 1, Sampling()), Told())
        ids = [vllm.GenerateRequest.FromString(call.message).request_id for call in link.calls]
        assert ids == ["a" * 32, "b" * 32]

    with_engine(test)
