"""What breaks while requests run: engines die or fall silent, clients hang up or do not read, the frontend must go."""

from __future__ import annotations

import http.client
import json
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from enginehouse.domain.engine import ProtocolName
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.fleets import two, urls
from tests.e2e.support import WITHIN, Answer, Stream, ask, at_once, chat, counts, well_formed
from tests.support import until

pytestmark = pytest.mark.e2e
ALL = [protocol.value for protocol in ProtocolName]


def well_ended(answer: Answer) -> bool:
    """Whole, or an error that a client can read: never a break, never silence, never two ends."""
    return answer.whole or (well_formed(answer.error) and answer.finish is None and not answer.broken)


@pytest.mark.parametrize("protocol", ALL)
def test_m2_engine_killed_before_the_first_token_fails_nobody(
    engine: MakeEngine, front: MakeFront, protocol: str
) -> None:
    """Twelve streams, six of them on an engine that has sent nothing when it is killed: all twelve are answered."""
    a, b, running = two(engine, front, protocol=protocol, prefill_hold=True)
    streams = [Stream(running, chat(f"request {number}")) for number in range(12)]
    until(lambda: a.open == 6)
    a.kill()
    answers = [stream.rest() for stream in streams]
    assert [answer.status for answer in answers] == [200] * 12
    assert all(answer.whole for answer in answers)
    assert b.requests == 12
    running.wait_idle()


@pytest.mark.parametrize("protocol", ALL)
def test_m2_engine_killed_after_five_tokens_ends_its_streams_with_an_error(
    engine: MakeEngine, front: MakeFront, protocol: str
) -> None:
    # Without a pace each token is handed on before the next is made, so pieces of text are tokens.
    a, b, running = two(engine, front, protocol=protocol, stall_after_tokens=5, tokens_per_second=0)
    streams = [Stream(running, chat(f"request {number}", max_tokens=30)) for number in range(12)]
    for stream in streams:
        stream.until_text(5)
    a.kill()
    answers = [stream.rest() for stream in streams]
    assert sum(answer.whole for answer in answers) == 6
    broken = [answer for answer in answers if not answer.whole]
    assert all(well_formed(answer.error) and not answer.broken for answer in broken)
    assert all(answer.finish is None for answer in broken)
    running.wait_idle()
    assert counts([b], lambda: [ask(running) for _ in range(3)]) == [3]


def test_engine_killed_in_the_middle_of_everything(engine: MakeEngine, front: MakeFront) -> None:
    """Some had text and some had none: who had none is answered, the others are told."""
    a, _, running = two(engine, front, die_after_tokens=40)
    answers = at_once(running, [chat(f"request {number}", max_tokens=20) for number in range(12)])
    assert all(well_ended(answer) for answer in answers), answers
    assert all(answer.text for answer in answers)
    assert a.child is not None
    assert a.child.process.wait(WITHIN) == 137
    running.wait_idle()


def test_not_streamed_answers_of_a_killed_engine_are_made_again(engine: MakeEngine, front: MakeFront) -> None:
    """Nothing reaches the client before the end, so nothing is lost: even after five tokens."""
    a, b, running = two(engine, front, stall_after_tokens=5)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, running, chat(f"request {number}", stream=False)) for number in range(4)]
        until(lambda: a.open == 2)
        a.kill()
        answers = [one.result(WITHIN) for one in asked]
    assert [answer.status for answer in answers] == [200] * 4
    assert {answer.body["usage"]["completion_tokens"] for answer in answers} == {8}
    assert b.requests == 4
    running.wait_idle()


@pytest.mark.parametrize("protocol", ALL)
def test_m3_a_refusing_engine_costs_one_try(engine: MakeEngine, front: MakeFront, protocol: str) -> None:
    """Two engines, one refuses: each request succeeds, on the second try at the latest."""
    a, b, running = two(engine, front, protocol=protocol)
    a.faults(refuse="UNAVAILABLE")
    answers = [ask(running, chat(f"request {number}")) for number in range(6)]
    assert all(answer.whole for answer in answers)
    assert b.requests == 6
    running.wait_idle()


@pytest.mark.parametrize("protocol", ALL)
def test_g5_a_stream_that_ends_with_no_terminal_message_is_no_clean_answer(
    engine: MakeEngine, front: MakeFront, protocol: str
) -> None:
    one = engine("a", protocol=protocol, vanish_after_tokens=3).run()
    running = front(*urls(one))
    streamed = ask(running)
    assert streamed.finish is None
    assert well_formed(streamed.error)
    running.wait_idle()


STAGES = {
    "queue": {"never_answer": True},
    "prefill": {"prefill_hold": True},
    "middle": {"stall_after_tokens": 3},
}


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("streamed", [True, False])
def test_s1_m5_a_client_that_hangs_up_frees_the_engine(
    engine: MakeEngine, front: MakeFront, protocol: str, stage: str, streamed: bool
) -> None:
    """In queue, prefill and mid-stream, streamed or not: the engine sees the abort, every count returns to zero."""
    one = engine("a", protocol=protocol).run()
    one.faults(**STAGES[stage])
    running = front(*urls(one))
    streams = [Stream(running, chat(f"request {number}", max_tokens=50, stream=streamed)) for number in range(3)]
    until(lambda: one.open == 3)
    if stage == "middle" and streamed:
        for stream in streams:
            stream.until_text()
    for stream in streams:
        stream.close()
    until(lambda: one.open == 0)
    assert len(one.seen("abort")) == 3
    running.wait_idle()
    one.faults()
    assert ask(running).whole


def test_m5_a_crowd_that_hangs_up_at_random_leaves_nothing(engine: MakeEngine, front: MakeFront) -> None:
    a, b, running = two(engine, front)

    def visit(number: int) -> None:
        stream = Stream(running, chat(f"request {number}", max_tokens=20))
        for _ in range(number % 7 + 1 if number % 4 else 0):
            stream.event()
        stream.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(visit, range(150)))
    running.wait_idle()
    until(lambda: a.open == b.open == 0)
    metrics = running.get("/metrics")[1].decode()
    assert "in_flight" in metrics
    assert all(line.endswith((" 0", " 0.0")) for line in metrics.splitlines() if _gauge_of_work(line))


def _gauge_of_work(line: str) -> bool:
    return "in_flight" in line.split("{")[0].split(" ")[0] and not line.startswith("#")


def test_m14_g9_a_mute_engine_delays_nobody_and_leaves_the_rotation(engine: MakeEngine, front: MakeFront) -> None:
    """Its health says yes and it never answers: requests on it go elsewhere after the deadline, and it gets no more."""
    a, b, running = two(engine, front, "--first-token-timeout", 5, never_answer=True)
    answers = at_once(running, [chat(f"request {number}") for number in range(6)])
    assert all(answer.whole for answer in answers)
    assert b.requests == 6
    running.wait_state(a, "suspect", "failed", "probing")
    assert counts([b], lambda: [ask(running) for _ in range(4)]) == [4]
    a.faults(never_answer=False)
    running.wait_state(a, "serving")
    running.wait_idle()


def test_m14_others_are_served_while_an_engine_is_mute(engine: MakeEngine, front: MakeFront) -> None:
    """No deadline has passed yet: the requests on the mute engine wait, the others come to their end meanwhile."""
    a, b, running = two(engine, front, never_answer=True)
    streams = [Stream(running, chat(f"request {number}")) for number in range(4)]
    until(lambda: a.open == 2)
    until(lambda: len(b.seen("end")) == 2)
    assert a.open == 2
    for stream in streams:
        stream.close()
    until(lambda: a.open == 0)
    running.wait_idle()


def test_an_engine_that_falls_silent_in_mid_stream_ends_in_an_error(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", stall_after_tokens=3).run()
    running = front(*urls(one), "--token-timeout", 0.5)
    answer = ask(running)
    assert (answer.finish, answer.error and answer.error["code"]) == (None, "engine_timeout")
    until(lambda: len(one.seen("abort")) == 1)
    running.wait_idle()


def test_m15_sigterm_under_load_cuts_nobody(engine: MakeEngine, front: MakeFront) -> None:
    """Not ready at once, still serving through the grace, `Connection: close`, running answers end whole, exit 0."""
    one = engine("a", tokens_per_second=20).run()
    running = front(*urls(one), "--shutdown-grace", 6, "--shutdown-timeout", 30)
    streams = [Stream(running, chat(f"request {number}", max_tokens=60)) for number in range(8)]
    for stream in streams:
        stream.until_text()
    kept = http.client.HTTPConnection("127.0.0.1", running.port, timeout=WITHIN)
    kept.request("GET", "/livez")
    assert kept.getresponse().read() == b"ok\n"
    running.child.signal(signal.SIGTERM)
    until(lambda: running.get("/readyz")[0] == 503)
    # Load balancers have not noticed yet: new connections and kept ones are served, and told to go.
    during = ask(running)
    assert during.whole
    kept.request("POST", "/v1/chat/completions", json.dumps(chat(stream=False)), {"Content-Type": "application/json"})
    answer = kept.getresponse()
    assert answer.status == 200
    assert answer.read()
    assert answer.getheader("connection") == "close"
    answers = [stream.rest() for stream in streams]
    assert all(answer.whole for answer in answers), answers
    assert running.child.process.wait(WITHIN) == 0


def test_sigterm_cuts_what_outlasts_the_deadline_and_tells_the_engine(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", stall_after_tokens=2).run()
    running = front(*urls(one), "--shutdown-timeout", 0.5)
    stream = Stream(running, chat())
    stream.until_text()
    running.child.signal(signal.SIGTERM)
    assert running.child.process.wait(WITHIN) == 0
    assert not stream.rest().whole
    until(lambda: one.open == 0)


@pytest.mark.parametrize("protocol", ALL)
def test_an_engine_that_leaves_in_order_is_not_an_error(engine: MakeEngine, front: MakeFront, protocol: str) -> None:
    """SIGTERM at an engine that lets its streams end: they end whole, new requests go elsewhere."""
    a, b, running = two(engine, front, protocol=protocol, tokens_per_second=20, shutdown_grace=30)
    streams = [Stream(running, chat(f"request {number}", max_tokens=40)) for number in range(4)]
    for stream in streams:
        stream.until_text()
    assert a.child is not None
    a.child.signal(signal.SIGTERM)
    assert all(ask(running).whole for _ in range(4))
    assert all(stream.rest().whole for stream in streams)
    running.wait_idle()
    assert b.requests >= 6


def test_g8_the_clients_request_id_is_never_the_engines(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a").run()
    running = front(*urls(one))
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=WITHIN)
        body = json.dumps(chat(stream=False))
        connection.request(
            "POST",
            "/v1/chat/completions",
            body,
            {"Content-Type": "application/json", "X-Request-Id": "mine", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
        )
        assert connection.getresponse().status == 200
        connection.close()
    rids = [line["rid"] for line in one.seen("request")]
    assert len(set(rids)) == 2
    assert "mine" not in " ".join(rids)
    assert len({len(rid) for rid in rids}) == 1
