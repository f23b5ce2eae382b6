"""No secret that a frontend is given, or is told by an engine, reaches its log or the pages that anybody may read."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from enginehouse.mock.vocabulary import BUNDLED
from enginehouse.settings import setting_rows
from tests.contract.engine_peers import SGLANG, serve
from tests.e2e.support import Front, chat
from tests.rigs.fake_kube import Answer, FakeKube, Request
from tests.rigs.kube_objects import pod
from tests.support import free_port, until

pytestmark = pytest.mark.e2e

KUBE, LINK, CLIENT, PROMPT = "KUBE-TOKEN-SECRET", "LINK-TOKEN-SECRET", "CLIENT-KEY-SECRET", "whisper-PROMPT-SECRET"
TOLD_BY_THE_ENGINE = "RIG-SECRET-MUST-NOT-BE-LOGGED"


@pytest.mark.rig("sglang")
@pytest.mark.parametrize("shape", ["text", "json"])
def test_s9_no_secret_reaches_the_log_or_a_page(
    tmp_path: Path, shape: str, front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = tmp_path / "kube"
    kubeconfig.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own = authority.issue_cert("frontend")
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "own.pem"))
    own.private_key_pem.write_to_path(str(tmp_path / "own.key"))
    key_lines = [
        line for line in own.private_key_pem.bytes().decode().splitlines() if len(line) > 20 and " " not in line
    ]
    assert key_lines

    def work(server: FakeKube) -> None:
        with serve(SGLANG, tmp_path / "rig", vocab=3000, tok_s=0) as rig:
            assert rig.child is not None
            server.put(pod("a", ip="127.0.0.1", labels={"app": "x"}))
            server.put(pod("dead", ip="127.0.0.1", annotations={"port": str(free_port())}))
            options: list[object] = [
                *("--pods", "app=x", "--pod-port", rig.port, "--kubeconfig", kubeconfig / "kubeconfig"),
                *("--port-annotation", "port", "--kube-resync-interval", "0.2", "--kube-backoff-limit", "0.2"),
                *("--link-ca", tmp_path / "ca.pem", "--link-cert", tmp_path / "own.pem"),
                *("--link-key", tmp_path / "own.key", "--tokenizer", BUNDLED),
                *("--log-level", "debug", "--log-format", shape),
            ]
            if any(row.key == "link-token-file" for row in setting_rows()):
                (tmp_path / "link-token").write_text(LINK)
                options += ["--link-token-file", tmp_path / "link-token"]
            frontend = front(*options)
            pages = [ask(frontend, "/v1/chat/completions", json.dumps(chat(PROMPT, model="m", stream=False)))]
            assert b'"choices"' in pages[0]
            with rig.faults(error_after=2):
                pages.append(ask(frontend, "/v1/chat/completions", json.dumps(chat(PROMPT, model="m"))))
                assert b"error" in pages[-1]
            pages.append(ask(frontend, "/v1/chat/completions", f'{{"model": "m", "messages": "{PROMPT}"'))
            pages += [frontend.get(path)[1] for path in ("/engines", "/metrics", "/readyz", "/v1/models")]
            # Credentials that are refused, cannot be sent, cannot be read: each is told, none is shown.
            for token in (f"{KUBE}-other", f"{KUBE}\x1b[2J", None):
                if token is None:
                    (kubeconfig / "kubeconfig").write_text(f'users: [{{"name": "{KUBE}", "token": "{KUBE}')
                else:
                    server.kubeconfig(kubeconfig, {"token": token})
                monkeypatch.setattr(server, "every", refuse)
                said = {f"{KUBE}-other": "401", None: "is not YAML"}.get(token, "header cannot carry")
                until(lambda said=said: said.encode() in frontend.get("/engines")[1], saying=f"never said {said}")
                pages.append(frontend.get("/engines")[1])
            frontend.child.signal(signal.SIGTERM)
            assert frontend.child.process.wait(30) == 0
        log = frontend.child.output
        assert "pods listed" in log, "the log is there"
        for text in (log, *(page.decode() for page in pages[2:])):
            for secret in (KUBE, LINK, CLIENT, PROMPT, TOLD_BY_THE_ENGINE, *key_lines):
                assert secret not in text

    async def main() -> None:
        async with FakeKube() as server:
            server.every = None
            server.kubeconfig(kubeconfig, {"token": KUBE})
            await asyncio.to_thread(work, server)
            assert {request.headers.get("authorization") for request in server.requests} >= {f"Bearer {KUBE}"}

    asyncio.run(main())


async def refuse(_: Request, answer: Answer) -> None:
    await answer.refuse(401, "Unauthorized")


def ask(frontend: Front, path: str, body: str) -> bytes:
    """One request with a client's key; its answer, whatever it is."""
    connection = http.client.HTTPConnection("127.0.0.1", frontend.port, timeout=30)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {CLIENT}"}
        connection.request("POST", path, body, headers)
        return connection.getresponse().read()
    finally:
        connection.close()
