"""Clients that do not read: memory stays bounded, the engine feels it, and nothing waits for them for ever."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.fleets import urls
from tests.e2e.support import WITHIN, Engine, Front, Stream, ask, chat
from tests.support import until

pytestmark = pytest.mark.e2e
CROWD = 60


def test_s2_clients_that_never_read_cost_bounded_memory(engine: MakeEngine, front: MakeFront) -> None:
    """The engine feels it: without a set pace it makes tokens as they are taken, and after a while none are taken."""
    one = engine("a", tokens_per_second=0, context_length=1_000_000).run()
    running = front(*urls(one), "--stalled-client-timeout", 600)
    assert ask(running).whole
    pid = running.child.process.pid
    before = resident(pid)
    streams = [Stream(running, chat(f"{n}", max_tokens=500_000), receive=4096) for n in range(CROWD)]
    until(lambda: one.open == CROWD)
    tokens = standing_still(lambda: tokens_held(one))
    grown = (resident(pid) - before) / len(streams)
    assert tokens < CROWD * 50_000  # of half a million each
    assert grown < 1_000_000, f"{grown / 1e3:.0f} kB per client that does not read"
    assert ask(running).whole  # others are served as ever
    streams[0].until_text(200)  # and who begins to read again gets its answer in order
    for stream in streams:
        stream.close()
    until(lambda: one.open == 0)
    running.wait_idle()


def tokens_held(engine: Engine) -> int:
    """Tokens of prompts and answers that the engine works on."""
    with grpc.insecure_channel(f"{engine.host}:{engine.port}") as channel:
        data = channel.unary_unary("/vllm.grpc.engine.VllmEngine/GetLoads")(b"", timeout=WITHIN)
    loads: Any = pb.GetLoadsResponse.FromString(data).loads
    return sum(int(load.num_used_tokens) for load in loads)


def standing_still(value: Callable[[], int]) -> int:
    """The value once it does not move any more."""
    deadline = time.monotonic() + WITHIN
    seen: list[int] = []
    while len(seen) < 10 or len(set(seen[-10:])) > 1:
        assert time.monotonic() < deadline, f"it keeps moving: {seen[-10:]}"
        seen.append(value())
        time.sleep(0.1)
    return seen[-1]


def test_s2_a_client_that_stays_away_is_cut_and_the_engine_told(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", tokens_per_second=0, context_length=1_000_000).run()
    running = front(*urls(one), "--stalled-client-timeout", 0.5)
    stream = Stream(running, chat(max_tokens=500_000), receive=4096)
    until(lambda: one.requests == 1)
    until(lambda: one.open == 0)
    running.wait_idle()
    stream.close()


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(data) + data


@contextmanager
def deaf(front: Front, data: bytes) -> Iterator[socket.socket]:
    """A client that sends and never reads."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(WITHIN)
        sock.connect(("127.0.0.1", front.port))
        sock.sendall(data)
        yield sock


def descriptors(front: Front) -> int:
    return len(os.listdir(f"/proc/{front.child.process.pid}/fd"))


SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n"
ENDLESS = chat(max_tokens=900_000)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([request(chat(stream=False, max_tokens=40_000))], id="a large answer"),
        pytest.param([SCRAPE * number for number in range(4, 40, 2)], id="many small ones"),
    ],
)
def test_s2_a_stream_pipelined_behind_an_unread_answer_is_cut_too(
    engine: MakeEngine, front: MakeFront, before: list[bytes]
) -> None:
    """However full the way to the client was when its stream began: it is cut, the engine free, no socket left."""
    one = engine("a", tokens_per_second=0, context_length=1_000_000).run()
    running = front(*urls(one), "--stalled-client-timeout", 0.5, "--keep-alive-timeout", 1)
    assert ask(running).whole
    pid = running.child.process.pid
    size, sockets = resident(pid), descriptors(running)
    with ExitStack() as clients:
        for data in before:
            clients.enter_context(deaf(running, data + request(ENDLESS)))
        assert running.get("/livez")[0] == 200  # connections are accepted in their order
        until(lambda: descriptors(running) <= sockets, within=WITHIN, saying=str(running.page()))
        until(lambda: one.open == 0)
        running.wait_idle()
        assert resident(pid) - size < len(before) * 1_000_000 + 30_000_000
        assert ask(running).whole


def test_m15_clients_that_do_not_read_do_not_keep_the_frontend(engine: MakeEngine, front: MakeFront) -> None:
    """SIGTERM, and the process ends once its time is up: before an answer, behind one, in the middle of a stream."""
    one = engine("a", tokens_per_second=0, context_length=1_000_000).run()
    running = front(*urls(one), "--stalled-client-timeout", 600, "--shutdown-timeout", 1)
    assert ask(running).whole
    unread = [SCRAPE * 400, SCRAPE * 20 + request(ENDLESS), request(ENDLESS), request(chat(stream=False))]
    with ExitStack() as clients:
        for data in unread:
            clients.enter_context(deaf(running, data))
        assert running.get("/livez")[0] == 200
        standing_still(lambda: tokens_held(one))
        running.child.signal(signal.SIGTERM)
        assert running.child.process.wait(WITHIN) == 0, running.child.output[-3000:]
    until(lambda: one.open == 0)
