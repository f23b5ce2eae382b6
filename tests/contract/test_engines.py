"""One contract for every engine behind `ports.Engine`: our mock's three fronts, and the real servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator

import pytest

from enginehouse.adapters.engines import EngineConnector, ProbeSettings
from enginehouse.adapters.engines.engine import Engine
from enginehouse.adapters.link import Link, LinkSettings
from enginehouse.domain.engine import ProtocolName, Target
from enginehouse.domain.errors import (
    EngineBroken,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    ProbeFailed,
)
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta, Finish
from enginehouse.ports import Call
from enginehouse.service.membership_canary import canary
from tests.contract.engine_peers import KINDS, RANKS, Kind, Server, serve

GREEDY = Sampling(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", params=[kind.param() for kind in KINDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind: Kind = request.param
    ranks = {"ranks" if kind.mock else "dp_size": RANKS}
    speed = {"tokens_per_second" if kind.mock else "tok_s": 200}
    with serve(kind, tmp_path_factory.getbasetemp() / f"engine-{kind.name}", **ranks, **speed) as running:
        yield running


class Heard:
    """A DeltaSink that can be waited for."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.deltas: list[Delta] = []
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[EngineError | None] = loop.create_future()

    def on_delta(self, delta: Delta) -> None:
        assert not self.ended.done(), "news after the end"
        self.deltas.append(delta)
        if delta.token_ids and not self.begun.done():
            self.begun.set_result(None)

    def on_end(self, error: EngineError | None) -> None:
        self.ended.set_result(error)  # raises when it comes twice
        assert error is not None or self.finish is not None

    @property
    def ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def finish(self) -> Finish | None:
        return self.deltas[-1].finish if self.deltas else None


def connector(settings: ProbeSettings | None = None, link: LinkSettings | None = None) -> EngineConnector:
    return EngineConnector(lambda target: Link(target, link or LinkSettings()), settings)


def with_engine(
    server: Server,
    test: Callable[[Engine], Awaitable[None]],
    *,
    link: LinkSettings | None = None,
) -> None:
    async def run() -> None:
        engine = await connector(link=link).probe(Target("127.0.0.1", server.port))
        try:
            await test(engine)
        finally:
            await engine.close()

    asyncio.run(run())


def ask(
    server: Server,
    engine: Engine,
    length: int,
    sampling: Sampling = GREEDY,
    *,
    prompt: list[int] | None = None,
    request_id: str = "",
    rank: int | None = None,
) -> tuple[Heard, Call, str]:
    name = request_id or uuid.uuid4().hex
    heard = Heard()
    call = engine.generate(
        EngineRequest(name, server.prompt if prompt is None else prompt, length, sampling, rank), heard
    )
    assert not heard.deltas, "nothing may come before generate has returned"
    return heard, call, name


async def whole(heard: Heard) -> EngineError | None:
    return await asyncio.wait_for(heard.ended, 30)


def test_probe_reads_what_it_is(server: Server) -> None:
    async def test(engine: Engine) -> None:
        info, kind = engine.info, server.kind
        assert info.protocol is kind.protocol
        assert info.model == ("mock" if kind.mock else "m")
        assert info.context_length == (32_768 if kind.mock else 4096)
        assert info.block_size == (16 if kind.scripted else 32)
        assert info.ranks == (RANKS if kind.scripted else 1)
        assert info.kv_capacity_tokens
        assert info.max_running
        has_instance = kind.protocol is not ProtocolName.VLLM and kind.name != "sglang-0.5.16"
        assert (info.instance_id is not None) is has_instance
        assert (await engine.check()) == info

    with_engine(server, test)


def test_an_answer_is_the_engines_tokens_and_its_finish(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, _, _ = ask(server, engine, 12)
        assert await whole(heard) is None
        assert heard.ids == server.answer(12)
        assert heard.finish is Finish.LENGTH
        assert len(heard.deltas) > 1  # the first token by itself; an engine that is late may put others together
        assert next(delta.prompt_tokens for delta in heard.deltas if delta.prompt_tokens) == len(server.prompt)
        again, _, _ = ask(server, engine, 12)
        assert await whole(again) is None
        assert again.ids == heard.ids
        assert max(delta.cached_tokens or 0 for delta in again.deltas) >= 64

    with_engine(server, test)


def test_g6_a_single_token(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, _, _ = ask(server, engine, 1)
        assert await whole(heard) is None
        assert (heard.ids, heard.finish) == (server.answer(1), Finish.LENGTH)

    with_engine(server, test)


def test_a_stop_token_ends_it_and_is_its_last_id(server: Server) -> None:
    async def test(engine: Engine) -> None:
        want = server.answer(4)
        heard, _, _ = ask(server, engine, 12, Sampling(temperature=0.0, ignore_eos=True, stop_token_ids=(want[-1],)))
        assert await whole(heard) is None
        assert (heard.ids, heard.finish) == (want, Finish.STOP)

    with_engine(server, test)


def test_min_tokens_puts_a_stop_token_off(server: Server) -> None:
    if not server.kind.scripted:
        pytest.skip("a real engine avoids the token instead")

    async def test(engine: Engine) -> None:
        sampling = Sampling(temperature=0.0, ignore_eos=True, stop_token_ids=(server.answer(3)[-1],), min_tokens=5)
        heard, _, _ = ask(server, engine, 6, sampling)
        assert await whole(heard) is None
        assert (heard.ids, heard.finish) == (server.answer(6), Finish.LENGTH)

    with_engine(server, test)


def test_g8_same_requests_side_by_side(server: Server) -> None:
    async def test(engine: Engine) -> None:
        several = [ask(server, engine, 12)[0] for _ in range(6)]
        assert [await whole(heard) for heard in several] == [None] * 6
        assert all(heard.ids == server.answer(12) for heard in several)

    with_engine(server, test)


def test_cancelling_reaches_the_engine_once(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, call, name = ask(server, engine, 2000)
        await asyncio.wait_for(heard.begun, 20)
        call.cancel()
        call.cancel()
        if server.kind.scripted:
            end = await asyncio.to_thread(server.wait_event, name, "end")
            aborts = server.events(name, "abort")
            assert len(aborts) == 1 if server.kind.mock else True  # SGLang's server may tell its engine twice
            assert end["outcome"] not in ("length", "stop")
        if engine.info.protocol is not ProtocolName.VLLM_NATIVE:
            await _idle(engine)
        assert not heard.ended.done()
        after, _, _ = ask(server, engine, 3)  # the engine and the link are well
        assert await whole(after) is None

    with_engine(server, test)


async def _idle(engine: Engine) -> None:
    async with asyncio.timeout(20):
        while any(load.running or load.waiting for load in (await engine.load()).values()):
            await asyncio.sleep(0.05)


def test_an_abort_that_was_not_asked_for_is_a_failure(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, _, name = ask(server, engine, 2000)
        await asyncio.wait_for(heard.begun, 20)
        await engine.abort(name)
        assert isinstance(await whole(heard), EngineFailed)
        assert heard.finish is None
        assert heard.ids == server.answer(len(heard.ids)) if server.kind.scripted else True
        await engine.abort("f" * 32)  # nobody's: harmless

    with_engine(server, test)


def test_g4_a_request_that_cannot_be_served_is_rejected(server: Server) -> None:
    async def test(engine: Engine) -> None:
        cases = [
            ask(server, engine, 4, prompt=[]),
            ask(server, engine, 4, prompt=[300] * ((engine.info.context_length or 0) + 1)),
        ]
        if not server.kind.mock:  # the mock does not look at sampling parameters
            cases.append(ask(server, engine, 4, Sampling(top_p=1.5)))
        for heard, _, _ in cases:
            error = await whole(heard)
            assert isinstance(error, EngineRejected)
            assert not error.retryable
            assert heard.ids == []

    with_engine(server, test)


def test_g3_a_million_tokens_are_refused_for_their_length_not_their_size(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, _, _ = ask(server, engine, 4, prompt=[2999] * 1_000_000)
        assert isinstance(await whole(heard), EngineRejected)
        after, _, _ = ask(server, engine, 3)
        assert await whole(after) is None

    with_engine(server, test)


def test_g3_a_message_above_our_own_limit_is_rejected(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, _, _ = ask(server, engine, 4, prompt=[2999] * 10_000)
        error = await whole(heard)
        assert isinstance(error, EngineRejected)
        assert "larger than" in error.message

    with_engine(server, test, link=LinkSettings(send_limit=10_000))


def test_k7_a_rank_can_be_chosen(server: Server) -> None:
    if not server.kind.scripted:
        pytest.skip("one rank")

    async def test(engine: Engine) -> None:
        for rank in range(RANKS):
            heard, _, name = ask(server, engine, 2, rank=rank)
            assert await whole(heard) is None
            (seen,) = server.events(name, "request")
            assert seen.get("routed_dp_rank", seen.get("rank")) == rank
        heard, _, _ = ask(server, engine, 2, rank=RANKS)
        assert isinstance(await whole(heard), EngineError)

    with_engine(server, test)


def test_load_is_told_for_each_rank_where_it_is_told(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, call, _ = ask(server, engine, 2000)
        await asyncio.wait_for(heard.begun, 20)
        load = await engine.load()
        call.cancel()
        if engine.info.protocol is ProtocolName.VLLM_NATIVE:
            assert load == {}
        else:
            assert set(load) == set(range(engine.info.ranks))
            assert all(entry.total_tokens for entry in load.values())
        if server.kind.scripted and load:
            assert sum(entry.running for entry in load.values()) == 1

    with_engine(server, test)


def test_the_tokenizer_is_handed_out_where_the_protocol_can(server: Server) -> None:
    async def test(engine: Engine) -> None:
        files = await engine.tokenizer_files()
        if engine.info.protocol is ProtocolName.VLLM:
            assert {"tokenizer.json", "tokenizer_config.json"} <= set(files)
            assert engine.info.tokenizer_digest is not None
        else:
            assert files == {}
            assert engine.info.tokenizer_digest is None

    with_engine(server, test)


def test_another_protocol_cannot_be_forced_on_it(server: Server) -> None:
    async def run() -> None:
        for protocol in ProtocolName:
            target = Target("127.0.0.1", server.port, protocol=protocol)
            if protocol is server.kind.protocol:
                await (await connector().probe(target)).close()
                continue
            with pytest.raises(
                ProbeFailed, match=f"demands; leave protocol out, or say protocol={server.kind.protocol}"
            ):
                await connector().probe(target)

    asyncio.run(run())


def test_an_error_after_some_tokens(server: Server) -> None:
    async def test(engine: Engine) -> None:
        with server.faults(error_after=3):
            heard, _, _ = ask(server, engine, 12)
            error = await whole(heard)
        assert isinstance(error, EngineFailed)
        assert error.retryable
        assert heard.ids == server.answer(len(heard.ids))
        assert heard.finish is None

    with_engine(server, test)


def test_g5_a_stream_that_ends_without_a_finish(server: Server) -> None:
    async def test(engine: Engine) -> None:
        with server.faults(vanish_after=3):
            heard, _, _ = ask(server, engine, 12)
            assert isinstance(await whole(heard), EngineBroken)
        assert heard.ids == server.answer(len(heard.ids))

    with_engine(server, test)


@pytest.mark.parametrize(("code", "kind"), [(400, EngineRejected), (503, (EngineOverloaded, EngineUnavailable))])
def test_g4_the_engines_own_admission_refusal(
    server: Server, code: int, kind: type[EngineError] | tuple[type[EngineError], ...]
) -> None:
    async def test(engine: Engine) -> None:
        with server.faults(reject=code):
            heard, _, _ = ask(server, engine, 12)
            assert isinstance(await whole(heard), kind)
        assert heard.ids == []

    with_engine(server, test)


def test_g9_healthy_and_mute_is_found_out_by_the_canary(server: Server) -> None:
    async def test(engine: Engine) -> None:
        with server.faults(mute=True):
            heard, call, name = ask(server, engine, 12)
            await asyncio.to_thread(server.wait_event, name, "request")
            assert heard.deltas == []
            call.cancel()
            await engine.check()  # which is why a check alone brings no engine back that was in doubt
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(canary(engine), 0.5)
        await asyncio.wait_for(canary(engine), 20)

    with_engine(server, test)


def test_an_answer_that_stalls_can_be_left(server: Server) -> None:
    async def test(engine: Engine) -> None:
        with server.faults(stall_after=3):
            heard, call, name = ask(server, engine, 12)
            await asyncio.wait_for(heard.begun, 20)
            call.cancel()
            await asyncio.to_thread(server.wait_event, name, "end")
        assert not heard.ended.done()
        assert server.answer(3)[: len(heard.ids)] == heard.ids

    with_engine(server, test)


def test_an_unhealthy_engine_is_not_admitted_and_fails_its_check(server: Server) -> None:
    if server.kind.name == "vllm-native":
        pytest.skip("its engine core can only die: see test_engines_start")

    async def test(engine: Engine) -> None:
        with server.faults(unhealthy=True):
            with pytest.raises(ProbeFailed, match="not healthy yet") as caught:
                await engine.check()
            assert not caught.value.permanent
            with pytest.raises(ProbeFailed, match="not healthy yet"):
                await connector().probe(Target("127.0.0.1", server.port))
        await engine.check()

    with_engine(server, test)


def test_a_deadline_of_the_link_is_a_timeout(server: Server) -> None:
    async def test(engine: Engine) -> None:
        with server.faults(mute=True):
            protocol, link = engine._protocol, engine._link
            heard = Heard()

            class Sink:
                def on_message(self, message: bytes) -> None:
                    """Nothing, or what is known of the prompt."""

                def on_end(self, error: object) -> None:
                    heard.ended.set_result(protocol.failure(error))  # type: ignore[arg-type]

            request = EngineRequest(uuid.uuid4().hex, server.prompt, 4, GREEDY)
            link.stream(protocol.generate_path, protocol.encode(request), Sink(), timeout=0.3)
            assert isinstance(await whole(heard), EngineTimeout)

    with_engine(server, test)
