"""Engines that start slowly, die, or are something else: what probing says of them, until it admits them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from enginehouse.adapters.engines import EngineConnector, ProbeSettings
from enginehouse.adapters.engines.engine import Engine
from enginehouse.adapters.link import Link, LinkSettings
from enginehouse.domain.engine import KvEventSource, Target
from enginehouse.domain.errors import EngineUnavailable, ProbeFailed
from tests.contract.engine_peers import (
    MOCK_NATIVE,
    MOCK_SGLANG,
    MOCK_VLLM,
    SGLANG,
    SGLANG_INCREMENTAL,
    SGLANG_OLD,
    VLLM_NATIVE,
    Kind,
    Server,
    serve,
)
from tests.contract.test_engines import ask, connector, whole
from tests.support import free_port, free_ports


async def probe(port: int, *, timeout: float = 10.0) -> Engine:
    return await connector(ProbeSettings(call_timeout=timeout)).probe(Target("127.0.0.1", port))


async def admitted(port: int, *, timeout: float = 10.0) -> tuple[Engine, list[ProbeFailed]]:
    """Probe until it is admitted; and the refusals until then."""
    refusals: list[ProbeFailed] = []
    async with asyncio.timeout(40):
        while True:
            try:
                return await probe(port, timeout=timeout), refusals
            except ProbeFailed as refusal:
                refusals.append(refusal)
                await asyncio.sleep(0.05)


MUTE = "no answer to the first question within 1 s"


async def serves(server: Server, engine: Engine) -> None:
    heard, _, _ = ask(server, engine, 5)
    assert await whole(heard) is None
    assert heard.ids == server.answer(5)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        pytest.param(MOCK_SGLANG, {"warmup": 4}, "not healthy yet", id="mock-sglang"),
        pytest.param(MOCK_VLLM, {"warmup": 4}, "not healthy yet", id="mock-vllm"),
        pytest.param(MOCK_NATIVE, {"mute": 4}, MUTE, id="mock-vllm-native"),
        pytest.param(SGLANG, {"warmup_s": 4}, "not healthy yet", id="sglang", marks=pytest.mark.rig("sglang")),
        pytest.param(
            VLLM_NATIVE,
            {"warmup_s": 4},
            MUTE,
            id="vllm-native",
            marks=pytest.mark.rig("vllm-native"),
        ),
    ],
)
def test_d12_an_engine_that_starts_is_admitted_when_it_can_serve(
    tmp_path: Path, kind: Kind, options: dict[str, float], reason: str
) -> None:
    async def run(server: Server) -> None:
        # Short for a mute engine's sake alone: one that answers may take its time.
        engine, refusals = await admitted(server.port, timeout=1 if reason == MUTE else 10)
        assert any(reason in refusal.reason for refusal in refusals), refusals
        assert not any(refusal.permanent for refusal in refusals)
        await serves(server, engine)
        await engine.close()

    with serve(kind, tmp_path / "engine", **options) as server:
        asyncio.run(run(server))


def test_d12_a_port_that_is_not_open_is_said_to_be_so() -> None:
    async def run() -> None:
        with pytest.raises(ProbeFailed, match="cannot connect") as caught:
            await probe(free_port())
        assert not caught.value.permanent

    asyncio.run(run())


def test_cancelling_a_probe_of_a_mute_port_leaves_no_connection(tmp_path: Path) -> None:
    async def run() -> None:
        connected, gone = asyncio.Event(), asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            while await reader.read(1000):
                pass
            gone.set()
            writer.close()

        listener = await asyncio.start_server(mute, "127.0.0.1", 0)
        task = asyncio.create_task(probe(listener.sockets[0].getsockname()[1]))
        await connected.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 20)
        listener.close()
        await listener.wait_closed()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(SGLANG, {"stream_interval": 4}, id="sglang", marks=pytest.mark.rig("sglang")),
        pytest.param(
            SGLANG_INCREMENTAL, {"stream_interval": 4}, id="sglang-incremental", marks=pytest.mark.rig("sglang")
        ),
        pytest.param(VLLM_NATIVE, {"stream_interval": 4}, id="vllm-native", marks=pytest.mark.rig("vllm-native")),
    ],
)
def test_g6_several_tokens_in_a_message(tmp_path: Path, kind: Kind, options: dict[str, int]) -> None:
    async def run(server: Server) -> None:
        engine, _ = await admitted(server.port)
        heard, _, _ = ask(server, engine, 11)
        assert await whole(heard) is None
        assert heard.ids == server.answer(11)
        assert max(len(delta.token_ids) for delta in heard.deltas) >= 2
        await engine.close()

    with serve(kind, tmp_path / "engine", **options) as server:
        asyncio.run(run(server))


@pytest.mark.parametrize(
    "kind",
    [
        MOCK_SGLANG.param(),
        MOCK_VLLM.param(),
        MOCK_NATIVE.param(),
        SGLANG.param(),
        VLLM_NATIVE.param(),
    ],
)
def test_an_engine_that_dies_under_a_stream_is_unavailable_and_noticed(tmp_path: Path, kind: Kind) -> None:
    async def run(server: Server) -> None:
        engine, _ = await admitted(server.port)
        lost: list[str] = []
        engine.on_lost(lost.append)
        heard, _, _ = ask(server, engine, 200)
        await asyncio.wait_for(heard.begun, 20)
        error = await whole(heard)
        assert isinstance(error, EngineUnavailable)
        assert error.suspect
        assert heard.ids == server.answer(len(heard.ids))
        assert lost
        late, _, _ = ask(server, engine, 3)
        assert isinstance(await whole(late), EngineUnavailable)
        with pytest.raises(ProbeFailed, match="cannot connect"):
            await engine.check()
        await engine.close()

    faults = {"die_after_tokens": 6} if kind.mock else {}
    env = {"RIG_FAULTS": '{"die_after_tokens": 6}'}
    with serve(kind, tmp_path / "engine", env=env, **faults) as server:
        asyncio.run(run(server))


@pytest.mark.rig("sglang")
def test_d10_a_follower_node_is_refused(tmp_path: Path) -> None:
    async def run(port: int) -> None:
        with pytest.raises(ProbeFailed, match="follower") as caught:
            await probe(port)
        assert caught.value.permanent

    with serve(SGLANG, tmp_path / "engine", follower=True) as server:
        asyncio.run(run(server.port))


@pytest.mark.rig("sglang")
def test_an_http_port_is_refused_with_advice(tmp_path: Path) -> None:
    async def run(port: int) -> None:
        with pytest.raises(ProbeFailed, match="give the engine's gRPC port, not its HTTP port") as caught:
            await probe(port)
        assert caught.value.permanent

    http = free_port()
    with serve(SGLANG, tmp_path / "engine", http_port=http) as server:
        assert server.child is not None
        server.child.wait_port(http)
        asyncio.run(run(http))


@pytest.mark.rig("vllm-native")
def test_vllms_http_port_is_refused_too(tmp_path: Path) -> None:
    """It closes connections that speak HTTP/2 at once, which a port that is just starting may do too."""

    async def run(server: Server, port: int) -> None:
        await (await admitted(server.port))[0].close()
        with pytest.raises(ProbeFailed) as caught:
            await probe(port)
        assert "if it is the engine's HTTP port, give its gRPC port" in caught.value.reason

    http = free_port()
    with serve(VLLM_NATIVE, tmp_path / "engine", http_port=http) as server:
        asyncio.run(run(server, http))


@pytest.mark.rig("vllm-native")
def test_g9_a_dead_engine_core_fails_the_check(tmp_path: Path) -> None:
    async def run(server: Server) -> None:
        engine, _ = await admitted(server.port)
        with server.faults(unhealthy=True), pytest.raises(ProbeFailed, match=r"NOT_SERVING|cannot connect|connection"):
            await asyncio.wait_for(_check_for_ever(engine), 20)
        await engine.close()

    with serve(VLLM_NATIVE, tmp_path / "engine") as server:
        asyncio.run(run(server))


async def _check_for_ever(engine: Engine) -> None:
    while True:
        await engine.check()


@pytest.mark.parametrize("kind", [SGLANG.param(), SGLANG_OLD.param(), VLLM_NATIVE.param()])
def test_kv_event_sources_are_reachable_addresses(tmp_path: Path, kind: Kind) -> None:
    async def run(server: Server) -> None:
        engine, _ = await admitted(server.port)
        assert engine.info.kv_event_sources == tuple(
            KvEventSource(rank, f"tcp://127.0.0.1:{first + rank}", "kv", f"tcp://127.0.0.1:{first + 2 + rank}", 16)
            for rank in range(2)
        )
        await engine.close()

    first = free_ports(4)
    options = {"dp_size": 2, "kv_events": f"tcp://*:{first}", "kv_replay": f"tcp://*:{first + 2}", "kv_topic": "kv"}
    with serve(kind, tmp_path / "engine", **options) as server:
        asyncio.run(run(server))


@pytest.mark.parametrize("kind", [MOCK_SGLANG, MOCK_VLLM, MOCK_NATIVE], ids=lambda kind: kind.name)
def test_s9_an_engine_behind_tls_that_wants_a_certificate(tmp_path: Path, kind: Kind) -> None:
    authority = trustme.CA()
    theirs, ours = authority.issue_cert("localhost"), authority.issue_cert("frontend")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours.private_key_and_cert_chain_pem.write_to_path(tmp_path / "ours.pem")

    async def run(server: Server) -> None:
        async with _tls_front(server.port, authority, theirs) as port:
            settings = LinkSettings(
                ca=str(tmp_path / "ca.pem"), cert=str(tmp_path / "ours.pem"), server_name="localhost"
            )
            secure = EngineConnector(lambda target: Link(target, settings))
            engine = await secure.probe(Target("127.0.0.1", port, tls=True))
            await serves(server, engine)
            await engine.close()
            stranger = EngineConnector(
                lambda target: Link(target, LinkSettings(ca=settings.ca, server_name="localhost"))
            )
            with pytest.raises(ProbeFailed) as caught:
                await stranger.probe(Target("127.0.0.1", port, tls=True))
            assert not caught.value.permanent or "gRPC" in caught.value.reason

    with serve(kind, tmp_path / "engine") as server:
        asyncio.run(run(server))


@asynccontextmanager
async def _tls_front(port: int, authority: trustme.CA, cert: trustme.LeafCert) -> AsyncIterator[int]:
    """A TLS listener in front of a plain port, as a mesh's proxy would be; it asks for a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    cert.configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        for work in (copy(reader, inner_writer), copy(inner_reader, writer)):
            task = asyncio.create_task(work, name="tls-front")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
