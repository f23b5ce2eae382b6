"""The command line: exit codes, what goes to which stream, tables, and no heavy import for a light command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import enginehouse
from enginehouse.cli import COMMANDS, main
from enginehouse.http.fleet_table import duration, render, table
from enginehouse.mock.vocabulary import BUNDLED
from tests.support import Answers, http_server


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ENGINEHOUSE_"):
            monkeypatch.delenv(name)


def engine(**other: Any) -> dict[str, Any]:
    plain = {
        "name": "default/a:30001",
        "state": "serving",
        "role": "aggregated",
        "streams": 3,
        "state_seconds": 3725.0,
        "next_try_seconds": None,
        "drain_left_seconds": None,
        "kept_for_seconds": None,
        "reason": None,
    }
    return plain | other


def page(*engines: dict[str, Any], **other: Any) -> dict[str, Any]:
    feed = {
        "name": "pods",
        "state": "watching",
        "synced": True,
        "age_seconds": 2.04,
        "listings": 4,
        "next_try_seconds": None,
        "error": None,
    }
    plain = {
        "ready": True,
        "reasons": [],
        "model": {"model": "qwen"},
        "topology": {"name": "aggregated", "why": ""},
        "policy": "round-robin",
        "requests_in_flight": 3,
        "engines": list(engines),
        "feeds": [feed],
    }
    return plain | other


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == enginehouse.__version__


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert COMMANDS[name][:40] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["serv"], 'Did you mean "serve"?'),
        (["serve", "--prot", "1"], "Did you mean --port?"),
        (["serve", "--port"], "requires an argument"),
        (["serve", "stray", "--engine=grpc://a:1"], "stray"),
        (["serve"], "no source of engines"),
        (["serve", "--engine=grpc://a:1", "--drain-timeout=-1"], "--drain-timeout must not be negative"),
        (["serve", "--engine=grpc://a:1", "--link-connect-timeout=0"], "--link-connect-timeout must be more than 0"),
        (["check", "--pods=x", "--kube-connect-timeout=0"], "--kube-connect-timeout must be more than 0"),
        (["check", "--engine=grpc://a:1", "--engines-file-poll-interval=0"], "--engines-file-poll-interval must be"),
        (["check", "--pods=app in a", "--pod-port=1"], "--pods: 'app in a' has a part that is no requirement"),
        (["check", "--pods=a", "--prefill-pods=b=-c"], "--prefill-pods: 'b=-c' has '-c', which no label can have"),
        (["check"], "no source of engines"),
        (
            ["check", "--namespace=a", "--all-namespaces", "--pods=x"],
            "--namespace and --all-namespaces exclude each other",
        ),
        (["check", "--engine=grpcs://a:1", "--link-ca=/no/such.pem"], "--link-ca: '/no/such.pem' cannot be read"),
        (["engines", "--timeout=0"], "--timeout: 0 is not a time to wait"),
        (["engines", "--timeout=1e300"], "--timeout: 1e+300 is not a time to wait"),
        (["mock", "--port=1.5"], "--port: '1.5' is not a whole number"),
        (["mock", "--tokens-per-second=nan"], "--tokens-per-second: 'nan' is not a number"),
        (["mock", "--ranks=0"], "--ranks must be at least 1"),
        (["mock", "--refuse=NO"], "--refuse: 'NO' is not the name of a gRPC status"),
        (["mock", "--protocol=http"], "sglang"),
        (["demo", "--engines=0"], "at least 1"),
        (["check", "--engine=grpc://a:1", "--kv-queue-weight=-1"], "--kv-queue-weight: -1 is too small"),
        (["check", "--engine=grpc://a:1", "--kv-prefill-weight=0"], "--kv-prefill-weight: 0 is too small"),
        (["check", "--engine=grpc://a:1", "--affinity-load-factor=0.5"], "--affinity-load-factor: 0.5 is too small"),
        (["check", "--engine=grpc://a:1", "--affinity-header=x y"], "--affinity-header: 'x y' is no name of a header"),
        (["check", "--engine=grpc://a:1", "--affinity=cookie"], "cookie"),
        (["check", "--engine=grpc://a:1", "--kv-replay-port=5558"], "--kv-replay-port"),
    ],
)
def test_what_is_not_understood_exits_with_2_and_one_line_a_problem(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert all(line.startswith("enginehouse: ") for line in captured.err.splitlines())


def test_check_says_what_serve_would_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEHOUSE_POLICE", "random")
    monkeypatch.setenv("KUBECONFIG", "/no/such/kubeconfig")
    argv = ["check", "--engine=grpc://a:1?role=decode", "--pods=app=x", "--pod-port=3", "--engines-file=/no/such/file"]
    assert main([*argv, "--tokenizer=/no/such/model", "--chat-template=/no/such/template"]) == 0
    out = capsys.readouterr().out
    assert "engine grpc://a:1 (decode)" in out
    assert "watch pods 'app=x', port 3" in out
    assert "follow the engines in /no/such/file" in out
    assert "warning: --engines-file: '/no/such/file' cannot be read: No such file or directory" in out
    assert "warning: no kubeconfig file at /no/such/kubeconfig; serve would not start here" in out
    assert "warning: --tokenizer: '/no/such/model' is no folder here" in out
    assert "warning: --chat-template: '/no/such/template' is no file here" in out
    assert "warning: ENGINEHOUSE_POLICE is not a setting; did you mean 'ENGINEHOUSE_POLICY'?" in out


@pytest.mark.parametrize(
    ("more", "topology"),
    [((), "auto"), (("--prefill-pods=app=y",), "disaggregated"), (("--topology=aggregated",), "aggregated")],
)
def test_check_says_the_topology_that_serve_would_begin_with(
    more: tuple[str, ...], topology: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--pods=app=x", *more]) == 0
    assert f"the model that the first engine serves, {topology} topology" in capsys.readouterr().out


def test_check_says_how_requests_are_routed(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["check", "--engine=grpc://a:1", "--policy=kv", "--kv-events-port=5557", "--kv-index-blocks=777"]
    assert main([*argv, "--affinity=header", "--affinity-header=x-chat", "--debug-headers"]) == 0
    out = capsys.readouterr().out
    assert "routing kv" in out
    assert "KV events of engines that publish them (port 5557 where they do not say which)" in out
    assert "up to 777 blocks" in out
    assert "the same header x-chat" in out
    assert "which engine was chosen" in out
    assert "warning" not in out
    assert main(["check", "--engine=grpc://a:1"]) == 0
    plain = capsys.readouterr().out
    assert "KV events" not in plain
    assert "together" not in plain
    assert "warning" not in plain


def test_check_warns_of_what_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["check", "--engine=grpc://a:1", "--kv-events-port=5557", "--kv-temperature=1", "--affinity-header=x-chat"]
    more = ["--kv-index-blocks=7", "--kv-events-connect-timeout=1", "--affinity-load-factor=2"]
    assert main([*argv, *more]) == 0
    out = capsys.readouterr().out
    for flag in ("kv-events-port", "kv-temperature", "kv-index-blocks", "kv-events-connect-timeout"):
        assert f"warning: --{flag} changes nothing: it is for --policy kv" in out
    assert "warning: --affinity-header changes nothing" in out
    assert "warning: --affinity-load-factor changes nothing: --affinity is off" in out
    assert main(["check", "--engine=grpc://a:1", "--affinity=user", "--affinity-header=x-chat"]) == 0
    assert "--affinity-header changes nothing: it is for --affinity header, and that is user" in capsys.readouterr().out


def test_check_warns_of_what_changes_nothing_for_two_pools(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("prefill-min-tokens", "kv-transfer-weight", "max-handovers-per-prefill")
    argv = ["check", "--engine=grpc://a:1", "--policy=kv", *[f"--{flag}=9" for flag in flags]]
    assert main([*argv, "--prefill-wait=3"]) == 0
    assert "warning" not in capsys.readouterr().out
    assert main([*argv, "--topology=aggregated"]) == 0
    out = capsys.readouterr().out
    for flag in flags:
        assert f"warning: --{flag} changes nothing: it is for prefill and decode apart" in out
    assert main([*argv, "--prefill-wait=3", "--prefill-missing=fail"]) == 0
    assert "--prefill-wait changes nothing: it is for --prefill-missing wait" in capsys.readouterr().out


@pytest.fixture
def frontend() -> Iterator[Callable[[bytes], str]]:
    """A server that answers /engines with the given body; returns its URL."""
    with ExitStack() as servers:

        def start(body: bytes) -> str:
            class Page(Answers):
                def do_GET(self) -> None:
                    self.send_response(200 if self.path == "/engines" else 404)
                    self.end_headers()
                    self.wfile.write(body)

            return f"{servers.enter_context(http_server(Page))}/"

        yield start


def test_engines_prints_a_table(frontend: Callable[[bytes], str], capsys: pytest.CaptureFixture[str]) -> None:
    url = frontend(json.dumps(page(engine())).encode())
    assert main(["engines", "--url", url]) == 0
    assert "default/a:30001  serving" in capsys.readouterr().out


def test_engines_prints_the_page_itself(frontend: Callable[[bytes], str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = page(engine())
    assert main(["engines", "--json", "--url", frontend(json.dumps(shown).encode())]) == 0
    assert json.loads(capsys.readouterr().out) == shown


def test_check_says_nothing_of_files_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "engines.yaml").write_text("[]")
    assert main(["check", f"--engines-file={tmp_path / 'engines.yaml'}", f"--tokenizer={BUNDLED}"]) == 0
    assert "warning" not in capsys.readouterr().out
    assert main(["check", f"--engines-file={tmp_path}"]) == 0
    assert f"warning: --engines-file: '{tmp_path}' is not a regular file" in capsys.readouterr().out


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"", b"{}", b"[]", b"null", b"7", b"[" * 100_000, b"\xff", b'{"model": null, "ready": true}'],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_engines_on_something_else_fails_in_one_line(
    body: bytes, frontend: Callable[[bytes], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["engines", "--url", frontend(body)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_engines_takes_a_bare_host_and_port(
    frontend: Callable[[bytes], str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = frontend(json.dumps(page(engine())).encode())
    assert main(["engines", "--url", url.removeprefix("http://").rstrip("/")]) == 0
    assert "default/a:30001" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///etc/passwd", "not of the form http://HOST:PORT"),
        ("grpc://a:1", "not of the form"),
        ("http://[::1", "not of the form"),
        ("http://a b:1", "not of the form"),
        ("http://a:port", "not of the form"),
        ("http://", "not of the form"),
        ("\x1b[2J", "not of the form"),
    ],
)
def test_a_url_that_cannot_be_asked_fails_in_one_line(url: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "--url", url]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "\x1b" not in line


def test_engines_of_a_grpc_port_fails_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(bytes.fromhex("000000040000000000") + b"\n")  # the SETTINGS of HTTP/2

        thread = threading.Thread(target=answer)
        thread.start()
        assert main(["engines", "--url", f"127.0.0.1:{server.getsockname()[1]}"]) == 1
        thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert "is it a frontend's HTTP port?" in line


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_has_seen_enough_is_no_traceback(options: list[str], frontend: Callable[[bytes], str]) -> None:
    url = frontend(json.dumps(page(*[engine()] * 5000)).encode())
    command = [sys.executable, "-m", "enginehouse", "engines", "--url", url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait() == 1


def test_what_engines_say_reaches_the_terminal_as_text(
    frontend: Callable[[bytes], str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = page(engine(name="a\x1b]0;title\x07", reason="bad\x1b[2J\u202e \ud800"), model={"model": "m\x1b[31m\r\n"})
    assert main(["engines", "--url", frontend(json.dumps(shown).encode())]) == 0
    out = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in out)
    assert r"a\x1b]0;title\x07" in out
    assert r"bad\x1b[2J\u202e \ud800" in out
    assert out.startswith(r"m\x1b[31m\r\n,")


def test_engines_without_a_frontend_fails_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "--url", "http://127.0.0.1:1"]) == 1
    assert "refused" in capsys.readouterr().err


def test_engines_loads_nothing_heavy() -> None:
    heavy = ("tokenizers", "fastokens", "grpc", "httpx", "uvicorn", "starlette", "jinja2")
    code = (
        "import sys; from enginehouse.cli import main; main(['engines', '--url', 'http://127.0.0.1:1'])\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_table_shows_what_comes_next() -> None:
    lines = list(
        render(
            page(
                engine(),
                engine(
                    name="b", state="failed", role=None, streams=0, next_try_seconds=4.2, reason="connect:\n refused"
                ),
                engine(name="c", state="draining", drain_left_seconds=290.0, reason="pod deleted"),
                engine(name="d", state="unready", kept_for_seconds=55.0, reason="not ready"),
                engine(name="e", state="waiting", reason="Pending"),
                ready=False,
                reasons=["no engine serves"],
            )
        )
    )
    assert lines[0] == "qwen, aggregated, round-robin, 3 in flight, not ready: no engine serves"
    rows = {line.split()[0]: line for line in lines[2:] if line}
    assert rows["b"].split() == ["b", "failed", "-", "0", "1h02m", "try", "in", "4.2s", "connect:", "refused"]
    assert "cut in 4m50s" in rows["c"]
    assert "kept for 55s" in rows["d"]
    assert rows["e"].split()[-2:] == ["-", "Pending"]
    assert rows["pods"].split()[:5] == ["pods", "watching", "2.0s", "4", "-"]


def test_the_table_of_engines_says_what_reads_calls_and_thinking() -> None:
    parsers = {"tool_parser": {"name": "hermes", "by": "template"}, "reasoning_parser": {"name": None, "by": None}}
    lines = render(page(model={"model": "qwen", **parsers}))
    assert lines[1] == "parsers: tool hermes (by template), reasoning none"
    assert render(page(model={"model": "qwen", "tool_parser": None, "reasoning_parser": None}))[1] == ""


def test_an_empty_fleet_is_said_in_words() -> None:
    lines = list(render(page(model=None, ready=False, reasons=["no engine serves"])))
    assert lines[0].startswith("no model yet,")
    assert "no engines" in lines


def test_columns_are_aligned() -> None:
    lines = list(table(("A", "B"), [("long cell", "x"), ("s", "y")]))
    assert [line.rindex(mark) for line, mark in zip(lines, "Bxy", strict=True)] == [11, 11, 11]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.4, "59s"), (59.6, "1m00s"), (185, "3m05s"), (7620, "2h07m"),
     (367200, "4d06h")],
)  # fmt: skip
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "enginehouse", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == enginehouse.__version__


def test_no_machine_path_or_secret_in_help(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serve", "--help"])
    assert str(Path.home()) + "/" not in capsys.readouterr().out


@pytest.mark.parametrize(("content", "says"), [(None, "cannot be read"), ("", "it is empty"), ("a\x1bb", "header")])
def test_s9_a_token_file_that_cannot_be_used_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, says: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    assert main(["check", "--engine", "grpcs://127.0.0.1:1", "--link-token-file", str(file)]) == 2
    said = capsys.readouterr().err
    assert "--link-token-file" in said
    assert says in said
