"""Clients that steer, flood, upgrade, oversize and vanish: nothing of theirs chooses an engine or stays behind."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from enginehouse.core.openai.refusals import STEERING
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.fleets import two, urls
from tests.e2e.support import WITHIN, Front, ask, chat, counts
from tests.support import until

pytestmark = pytest.mark.e2e

HEADERS = (
    "x-dynamo-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-dynamo-decode-instance-id",
    "x-dynamo-dp-rank",
    "x-worker-instance-id",
    "x-data-parallel-rank",
    "x-data-parallel-host-port",
    "x-gateway-destination-endpoint",
    "x-gateway-inference-objective",
    "x-prefiller-host-port",
    "x-smg-target-worker",
    "x-smg-routing-key",
    "x-routing-key",
    "x-session-id",
    "x-user-id",
    "x-bootstrap-host",
    "x-bootstrap-port",
    "x-bootstrap-room",
    "x-priority",
    "x-engine",
    "x-worker-id",
    "x-forwarded-host",
    "forwarded",
)
BODY = {
    *STEERING,
    "backend_instance_id",
    "bootstrap_pair_key",
    "conversation_id",
    "decode_tp_size",
    "decode_worker_id",
    "prefill_worker_id",
    "target_worker",
    "worker_instance_id",
    "x-data-parallel-rank",
    "x-dynamo-worker-instance-id",
}


class Kept:
    """One kept connection."""

    def __init__(self, front: Front) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WITHIN)

    def post(
        self, body: dict[str, Any], headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
    ) -> tuple[int, Any]:
        self._connection.request(
            "POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
        )
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.fixture
def kept() -> Iterator[Callable[[Front], Kept]]:
    made: list[Kept] = []

    def make(front: Front) -> Kept:
        made.append(Kept(front))
        return made[-1]

    yield make
    for one in made:
        one._connection.close()


def test_s3_no_header_and_no_query_chooses_the_engine_or_its_rank(
    engine: MakeEngine, front: MakeFront, kept: Callable[[Front], Kept]
) -> None:
    """Every way that other frontends offer, with the name of each engine: requests go where the policy says."""
    a, b, running = two(engine, front, tokens_per_second=0)
    client = kept(running)
    short = chat(stream=False, max_tokens=1)
    for wanted in (a, b):
        row = running.engine(wanted)
        assert row is not None
        for name in HEADERS:
            for value in (wanted.url, row["id"], "1"):

                def pair(headers: dict[str, str]) -> None:
                    assert [client.post(short, headers)[0] for _ in range(2)] == [200, 200]

                assert counts([a, b], lambda: pair({name: value})) == [1, 1], (name, value)  # noqa: B023
        for query in (f"?worker={wanted.url}", f"?engine={row['id']}&rank=1", "?data_parallel_rank=1"):
            path = "/v1/chat/completions" + query
            assert counts([a, b], lambda: [client.post(short, path=path) for _ in range(2)]) == [1, 1]  # noqa: B023
    seen = [*a.seen("request"), *b.seen("request")]
    assert len({line["rank"] for line in seen}) == 1


def test_s3_no_header_chooses_the_rank(engine: MakeEngine, front: MakeFront, kept: Callable[[Front], Kept]) -> None:
    one = engine("a", ranks=4, tokens_per_second=0).run()
    running = front(*urls(one))
    client = kept(running)
    for name in HEADERS:
        for _ in range(4):
            assert client.post(chat(stream=False, max_tokens=1), {name: "3"})[0] == 200
    ranks = [line["rank"] for line in one.seen("request")]
    assert {ranks.count(rank) for rank in range(4)} == {len(HEADERS)}, ranks


def test_s3_what_steers_in_a_body_is_refused_by_name(
    engine: MakeEngine, front: MakeFront, kept: Callable[[Front], Kept]
) -> None:
    one = engine("a").run()
    running = front(*urls(one))
    client = kept(running)
    for name in sorted(BODY):
        for value in (0, 1, "1", {"backend_instance_id": 1}):
            status, answer = client.post(chat(**{name: value}))
            assert (status, answer["error"]["param"]) == (400, name), (name, value)
    assert one.requests == 0


def test_s6_ten_thousand_junk_models_and_paths_make_no_series(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a").run()
    running = front(*urls(one))

    def junk(number: int) -> bytes:
        body = json.dumps({"model": f"junk-{number}", "prompt": "x"}).encode()
        post = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        return post + b"GET /junk/%d HTTP/1.1\r\nHost: test\r\n\r\n" % number

    async def flood(numbers: range) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for start in numbers[::50]:
            writer.write(b"".join(junk(number) for number in range(start, start + 50)))
            for _ in range(100):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 404"), head
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
        writer.close()

    async def all_of_it() -> None:
        await asyncio.gather(*(flood(range(start, start + 1000)) for start in range(100, 5100, 1000)))

    def series() -> set[str]:
        text = running.get("/metrics")[1].decode()
        assert "junk" not in text
        return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}

    asyncio.run(flood(range(50)))
    before = series()
    asyncio.run(all_of_it())
    assert series() == before


def test_m5_a_thousand_clients_that_leave_at_random_points_leave_nothing(engine: MakeEngine, front: MakeFront) -> None:
    """In the head, the body, the queue, the prefill, the answer; by an end or a reset; streamed or not."""
    a, b, running = two(engine, front, prefill_tokens_per_second=20_000)
    rng = random.Random(5)
    places = asyncio.Semaphore(32)

    async def visit(number: int) -> None:
        words = "x " * rng.choice([3, 300, 2000])
        body = json.dumps(chat(words, max_tokens=50, stream=number % 3 > 0)).encode()
        data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        if number % 10 == 0:
            data = data[: rng.randrange(1, len(data))]
        async with places:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(data)
            reads, patience = rng.randrange(0, 4), rng.random() * rng.choice([0, 0.02, 0.2])
            try:
                async with asyncio.timeout(patience):
                    for _ in range(reads):
                        await reader.read(200)
                    await asyncio.Event().wait()
            except TimeoutError:
                pass
            if number % 4 == 0:
                reset = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            writer.close()

    async def crowd() -> None:
        await asyncio.gather(*(visit(number) for number in range(1000)))

    asyncio.run(crowd())
    running.wait_idle()
    until(lambda: a.open == b.open == 0)
    assert a.requests + b.requests > 300
    until(lambda: not busy(running), saying=str(busy(running)))
    assert ask(running).whole


def busy(front: Front) -> list[str]:
    """Gauges of work that are not zero."""
    lines = front.get("/metrics")[1].decode().splitlines()
    names = ("enginehouse_requests_in_flight", "enginehouse_requests_waiting", "enginehouse_engine_streams")
    found = [line for line in lines if line.startswith(names)]
    assert {line.split("{")[0] for line in found} == set(names)
    return [line for line in found if float(line.split()[-1])]


def raw(front: Front, *parts: bytes) -> bytes:
    """What comes back for these bytes until the other side closes."""
    with socket.create_connection(("127.0.0.1", front.port), WITHIN) as sock:
        for part in parts:
            sock.sendall(part)
        received = b""
        while data := sock.recv(65536):
            received += data
        return received


UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    "websocket": b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n",
}


@pytest.mark.parametrize("kind", UPGRADES)
@pytest.mark.parametrize("pieces", [1, 2])
def test_an_upgrade_is_declined_and_its_request_served(
    engine: MakeEngine, front: MakeFront, kind: str, pieces: int
) -> None:
    """Clients that would like HTTP/2 say so in their first request, and mean the request."""
    one = engine("a").run()
    running = front(*urls(one))
    body = json.dumps(chat(stream=False, max_tokens=2)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n" + UPGRADES[kind]
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    answer = raw(running, *([head + body] if pieces == 1 else [head, body]))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /" + b"x" * 70_000, id="request line"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: test\r\nX-Long: " + b"x" * 70_000, id="one header"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: test\r\n" + b"X-Many: x\r\n" * 7000, id="many headers"),
    ],
)
def test_s8_a_head_above_64_kib_is_refused(engine: MakeEngine, front: MakeFront, head: bytes) -> None:
    """Before it ends: what is not bounded is never gathered."""
    one = engine("a").run()
    running = front(*urls(one))
    answer = raw(running, head)
    assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    assert ask(running).whole


CHUNKED = b"Host: test\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "trailers": (b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 10_000),
    "crumbs": (b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED, b"1\r\na\r\n" * 10_000),
    "crumbs for nobody": (b"POST /nothing HTTP/1.1\r\n" + CHUNKED, b"1\r\na\r\n" * 10_000),
    "extension": (b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + b"2;", b"e" * 60_000),
    "too large": (b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 2000000000\r\n\r\n", b"a" * 60_000),
    "chunks": (b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED, b"ea60\r\n" + b"a" * 60_000 + b"\r\n"),
    "for nobody": (b"POST /nothing HTTP/1.1\r\nHost: test\r\nContent-Length: 2000000000\r\n\r\n", b"a" * 60_000),
    "not asked for": (b"GET /livez HTTP/1.1\r\n" + CHUNKED, b"ea60\r\n" + b"a" * 60_000 + b"\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_s8_a_request_without_end_costs_little_and_ends(engine: MakeEngine, front: MakeFront, kind: str) -> None:
    """Whatever part of it has no end, and whether it was answered before or not."""
    one = engine("a").run()
    running = front(*urls(one))
    head, unit = ENDLESS[kind]
    pid = running.child.process.pid
    before, sent = resident(pid), 0
    with socket.create_connection(("127.0.0.1", running.port), WITHIN) as sock:
        sock.sendall(head)
        try:
            while sent < 200_000_000:
                sock.sendall(unit)
                sent += len(unit)
        except OSError:
            pass
        assert sent < 200_000_000, "taken without end"
        assert resident(pid) - before < 150_000_000
        assert ask(running).whole


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_s8_nonsense_behind_a_request_is_no_part_of_its_answer(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", tokens_per_second=20).run()
    running = front(*urls(one))
    body = json.dumps(chat(max_tokens=20)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", running.port), WITHIN) as sock:
        sock.sendall(head + body)
        received = sock.recv(65536)
        assert received.startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GARBAGE\r\n\r\n")
        while data := sock.recv(65536):
            received += data
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert received.count(b"HTTP/1.1 ") == 1
