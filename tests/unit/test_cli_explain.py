"""`enginehouse explain`: what it asks a frontend, what it prints, and how it fails: in one line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from enginehouse.cli import main
from enginehouse.core.routing.candidate import Candidate, Load, Pairing
from enginehouse.core.routing.cost import Rule
from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.pairs import AloneReason, PairRouter
from enginehouse.core.routing.policy import Router
from enginehouse.core.routing.settings import RoutingSettings
from enginehouse.http.decision_table import ALONE, RULES, render
from enginehouse.http.fleet_table import NotAPage
from tests.support import Answers, http_server
from tests.unit.core.routing.fakes import FakePrompt

MODELS = {"data": [{"id": "qwen"}]}
Start = Callable[..., str]


class Low:
    def random(self) -> float:
        return 0.0


def told(policy: Any = "kv", busy: int = 0) -> Any:
    """A decision as the frontend tells it, between two engines of which `b` holds half of the prompt."""
    loads = [Load(), Load()]
    loads[1].requests, loads[1].tokens, loads[1].prefill_tokens = busy, 100 * busy, 10 * busy
    ranks = [Candidate(name, 1, name, None, load, n) for n, (name, load) in enumerate(zip("ab", loads, strict=True))]
    prompt = FakePrompt(1000, held={"b": 500})
    decision = Router(RoutingSettings(policy=policy), Low()).choose(ranks, (), prompt, explain=True)
    return json.loads(json.dumps(decision.explain()))


def told_apart(protocol: str = "vllm", **settings: Any) -> Any:
    """A decision for 1000 tokens between prefill engines p, q and decode engines a, b; p and b hold half of them."""

    def ranks(names: str) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(name, 1, name, None, Load(), n, pairing=Pairing(protocol)) for n, name in enumerate(names)
        )

    prefill = ranks("" if settings.get("prefill_missing") else "pq")
    prompt = FakePrompt(1000, held={"p": 500, "b": 500})
    router = PairRouter(RoutingSettings(policy="kv"), HandoverSettings(**settings), Low())
    return json.loads(json.dumps(router.choose(prefill, ranks("ab"), prompt, explain=True).explain()))


@pytest.fixture
def frontend() -> Iterator[tuple[Start, list[bytes]]]:
    """Starts a server that answers as it is told and keeps what it is sent; gives its URL."""
    bodies: list[bytes] = []
    with ExitStack() as servers:

        def start(explained: bytes, status: int = 200, models: Any = MODELS) -> str:
            class Frontend(Answers):
                def do_GET(self) -> None:
                    self.send_response(200 if self.path == "/v1/models" else 404)
                    self.end_headers()
                    self.wfile.write(json.dumps(models).encode())

                def do_POST(self) -> None:
                    bodies.append(self.rfile.read(int(self.headers["content-length"])))
                    self.send_response(status if self.path == "/explain" else 404)
                    self.end_headers()
                    self.wfile.write(explained)

            return servers.enter_context(http_server(Frontend))

        yield start, bodies


def test_the_candidates_are_printed_best_first_with_their_parts(
    frontend: tuple[Start, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    start, bodies = frontend
    assert main(["explain", "--prompt", "once upon", "--url", start(json.dumps(told()).encode())]) == 0
    assert json.loads(bodies[0]) == {"model": "qwen", "prompt": "once upon"}
    head, numbers, _, titles, first, second = capsys.readouterr().out.splitlines()
    assert head == "b, by policy kv among 2: best (it costs least)"
    assert numbers == "1000 prompt tokens, 500 of them predicted in its cache"
    assert first.split()[:2] == ["*", "b"]
    assert second.split()[0] == "a"
    for row, held, left in ((first, "500", "500"), (second, "0", "1000")):
        assert row[titles.index("HELD") :].split()[:2] == [held, left]
    assert float(first.split()[-1]) < float(second.split()[-1])


def test_a_pair_has_a_table_for_each_of_its_engines() -> None:
    lines = render(told_apart("sglang"))
    middle = lines.index("decode, of those that fit it:")
    first, second = lines[: middle - 1], lines[middle:]
    assert first[:2] == ["prefill:", "p, by policy kv among 2: best (it costs least)"]
    assert "TO PREFILL" in first[4]
    assert [line.split()[:2] for line in first[5:]] == [["*", "p"], ["q", "-"]]
    assert second[1] == "b, by policy kv among 2: best (it costs least)"
    assert "TO FETCH" in second[4]
    assert "TO PREFILL" not in second[4]
    assert [line.split()[:2] for line in second[5:]] == [["*", "b"], ["a", "-"]]


@pytest.mark.parametrize(
    ("settings", "reason", "rule"),
    [
        ({"prefill_min_tokens": 2000}, "short-prompt", "2: best"),
        ({"prefill_min_tokens": 600}, "mostly-cached", "1: only-one"),
        ({"prefill_missing": "decode"}, "no-prefill-engine", "2: best"),
    ],
)
def test_a_decode_engine_alone_comes_with_the_reason(settings: dict[str, Any], reason: str, rule: str) -> None:
    lines = render(told_apart(**settings))
    assert lines[0].startswith(f"a decode engine alone: {reason} (")
    assert lines[1].startswith(f"b, by policy kv among {rule} (")
    assert "TO PREFILL" in lines[4], "it is to compute what it does not hold"


def test_every_reason_to_work_alone_is_explained() -> None:
    assert set(get_args(AloneReason)) == set(ALONE)


@pytest.mark.parametrize("missing", [{}, {"prefill_missing": "decode"}])
def test_a_page_of_a_pair_that_lacks_something_is_none(missing: dict[str, Any]) -> None:
    page = told_apart(**missing)
    del page["decode"]
    with pytest.raises(NotAPage):
        render(page)


def test_a_policy_without_costs_shows_the_load_alone() -> None:
    lines = render(told("least-loaded", busy=2))
    assert lines[0].startswith("a, by policy least-loaded among 2: policy")
    assert "COST" not in lines[3]
    assert [line.split()[-5:-1] for line in lines[4:]] == [["-", "0", "0", "0"], ["-", "2", "200", "20"]]


@pytest.mark.parametrize("how", ["file", "stdin"])
def test_a_body_goes_as_it_is(
    how: str,
    frontend: tuple[Start, list[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start, bodies = frontend
    body = b'{"model": "m", "messages": [] }\n'
    (tmp_path / "body.json").write_bytes(body)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(body)))
    where = "-" if how == "stdin" else str(tmp_path / "body.json")
    shown = told()
    assert main(["explain", where, "--json", "--url", start(json.dumps(shown).encode())]) == 0
    assert bodies == [body]
    assert json.loads(capsys.readouterr().out) == shown


def test_what_the_frontend_refuses_is_told_in_its_words(
    frontend: tuple[Start, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    start, _ = frontend
    body = {"error": {"message": "'temperature' is 9;\x1b[2J it must be less", "type": "x", "param": "y", "code": None}}
    assert main(["explain", "--prompt", "x", "--model", "m", "--url", start(json.dumps(body).encode(), 400)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert r"/explain: 'temperature' is 9;\x1b[2J it must be less" in line


@pytest.mark.parametrize("body", [b"<html>", b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"chosen": {}}', b"\xff"])
@pytest.mark.parametrize("status", [200, 404])
def test_something_else_than_a_frontend_fails_in_one_line(
    body: bytes, status: int, frontend: tuple[Start, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    start, _ = frontend
    assert main(["explain", "--prompt", "x", "--model", "m", "--url", start(body, status)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "is it a frontend?" in captured.err


def test_a_frontend_without_a_model_is_said_so(
    frontend: tuple[Start, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    start, bodies = frontend
    for models in ({"data": []}, [], {"data": 7}):
        assert main(["explain", "--prompt", "x", "--url", start(b"{}", models=models)]) == 1
        assert "lists no model yet" in capsys.readouterr().err
    assert bodies == []


@pytest.mark.parametrize(
    ("argv", "said", "status"),
    [
        ([], "give a FILE (- for standard input) or --prompt TEXT", 2),
        (["x.json", "--prompt", "x"], "give a FILE", 2),
        (["--promt"], "--promt is no option", 2),
        (["x.json", "--model", "m"], "--model goes with --prompt", 2),
        (["--prompt", "x", "--timeout", "0"], "--timeout: 0 is not a time to wait", 2),
        (["/no/such/file"], "/no/such/file: No such file", 1),
        (["--prompt", "x", "--url", "grpc://a:1"], "not of the form", 1),
        (["--prompt", "x", "--url", "127.0.0.1:1"], "refused", 1),
    ],
)
def test_what_cannot_be_asked_fails_in_one_line(
    argv: list[str], said: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *argv]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_every_rule_is_explained() -> None:
    assert set(get_args(Rule)) == set(RULES)


@pytest.mark.parametrize("name", ["chosen", "candidates", "rule", "considered", "prompt_tokens"])
def test_a_page_that_lacks_something_is_none(name: str) -> None:
    page = told()
    del page[name]
    with pytest.raises(NotAPage):
        render(page)


def test_explain_loads_nothing_heavy() -> None:
    heavy = ("tokenizers", "fastokens", "grpc", "httpx", "uvicorn", "starlette", "jinja2", "zmq")
    code = (
        "import sys; from enginehouse.cli import main\n"
        "main(['explain', '--prompt', 'x', '--url', 'http://127.0.0.1:1'])\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
