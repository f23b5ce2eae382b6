"""`enginehouse mock` as a process: its slow starts, its control file, how it dies and how it leaves."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as a

from enginehouse._proto import grpc_health_pb2 as health
from tests.support import PYTHON, Child, Start, free_port, json_lines, port_open, until

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"


def mock(start: Start, *options: object) -> tuple[Child, int]:
    port = free_port()
    child = start([PYTHON, "-m", "enginehouse", "mock", "--port", str(port), *map(str, options)])
    return child, port


def request(max_tokens: int = 100) -> bytes:
    tokens = a.TokenizedInput(input_ids=range(300, 310))
    params = a.SamplingParams(max_tokens=max_tokens)
    return bytes(
        a.GenerateRequest(request_id="r", tokenized=tokens, sampling_params=params, stream=True).SerializeToString()
    )


def serving(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=0.5)
        except grpc.RpcError:
            return False
    return bool(health.HealthCheckResponse.FromString(answer).status == health.HealthCheckResponse.SERVING)


def test_the_line_tells_the_port(start: Start) -> None:
    child = start([PYTHON, "-m", "enginehouse", "mock"])
    port = int(child.wait_line("on grpc://").rsplit(":", 1)[1])
    assert serving(port)


def test_a_slow_start_is_nothing_then_mute_then_unhealthy_then_well(start: Start) -> None:
    _, port = mock(start, "--listen-delay", 0.3, "--mute", 4, "--warmup", 4)
    until(lambda: port_open(port))
    assert not serving(port)  # mute: within its half second nothing answers
    until(lambda: _answers(port))
    assert not serving(port)
    until(lambda: serving(port))


def _answers(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=0.5)
        except grpc.RpcError as error:
            return bool(error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE))
    return True


def test_the_control_file_is_obeyed_while_it_runs(start: Start, tmp_path: Path) -> None:
    control = tmp_path / "faults.json"
    child, port = mock(start, "--control", control)
    child.wait_line("on grpc://")
    assert serving(port)
    control.write_text(json.dumps({"healthy": False}))
    until(lambda: not serving(port))
    control.write_text(json.dumps({"helthy": True}))
    child.wait_line("'helthy' is not a fault")
    assert not serving(port)
    control.unlink()
    until(lambda: serving(port))


def tokens(messages: list[bytes]) -> int:
    """In chunks: a process that is late puts several in one."""
    return sum(len(a.GenerateResponse.FromString(message).chunk.token_ids) for message in messages)


def _read(channel: Any, messages: list[bytes]) -> grpc.StatusCode:
    call = channel.unary_stream(GENERATE)(request(), timeout=30)
    with contextlib.suppress(grpc.RpcError):
        messages.extend(call)
    code = call.code()
    assert isinstance(code, grpc.StatusCode)
    return code


def test_death_after_tokens_is_like_a_kill(start: Start) -> None:
    child, port = mock(start, "--tokens-per-second", 100, "--die-after-tokens", 5)
    child.wait_line("on grpc://")
    messages: list[bytes] = []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert _read(channel, messages) is grpc.StatusCode.UNAVAILABLE
    assert 0 < tokens(messages) <= 5  # what was made and not yet sent dies with it
    assert child.process.wait(20) == 137


@pytest.mark.parametrize(("grace", "whole"), [(0, False), (50, True)])
def test_sigterm_ends_streams_or_gives_them_their_grace(
    start: Start, tmp_path: Path, grace: float, whole: bool
) -> None:
    log = tmp_path / "log"
    child, port = mock(start, "--tokens-per-second", 50, "--shutdown-grace", grace, "--log", log)
    child.wait_line("on grpc://")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream(GENERATE)(request(100 if whole else 10_000), timeout=50)
        messages = [next(call)]
        child.signal(signal.SIGTERM)
        with contextlib.suppress(grpc.RpcError):
            messages.extend(call)
        assert call.code() is (grpc.StatusCode.OK if whole else grpc.StatusCode.UNAVAILABLE)
    assert child.process.wait(20) == 0
    (end,) = [line for line in json_lines(log) if line["event"] == "end"]
    assert end["outcome"] == ("length" if whole else "abort")
    assert tokens(messages) == 100 if whole else tokens(messages) < 10_000


def test_a_taken_port_is_told_in_one_line(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for options in ([], ["--mute", "1"]):
            child = start([PYTHON, "-m", "enginehouse", "mock", "--port", str(port), *options])
            assert child.process.wait(20) == 1
            until(lambda child=child: child.lines)
            said = f"enginehouse: cannot listen on 127.0.0.1 port {port}: Address already in use"
            assert child.lines == [said]


def test_bad_options_stop_the_start(start: Start) -> None:
    child, _ = mock(start, "--ranks", 0)
    assert child.process.wait(20) != 0
    until(lambda: "ranks must be at least 1" in child.output)
