"""What each request sends: rotated tokens and authorities, exec plugins, and what is said when there is nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from enginehouse.adapters.kube.access import Access, Basic, ClientCertificate, Exec, InFile, Inline, Token, TokenFile
from enginehouse.adapters.kube.credentials import Credentials, CredentialsError, Prepared


def access(**fields: Any) -> Access:
    return Access(source="the test", server=fields.pop("server", "https://api"), namespace="default", **fields)


def prepare(credentials: Credentials) -> Prepared:
    return asyncio.run(credentials.prepare())


def test_plain_logins() -> None:
    assert prepare(Credentials(access(login=Token("abc")))).authorization == "Bearer abc"
    assert prepare(Credentials(access(login=Basic("me", "pw")))).authorization == "Basic bWU6cHc="
    nobody = prepare(Credentials(access(server="http://api")))
    assert (nobody.authorization, nobody.tls) == (None, None)


def test_d21_a_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    path = tmp_path / "token"
    credentials = Credentials(access(login=TokenFile(path)))
    path.write_text("one\n")
    assert prepare(credentials).authorization == "Bearer one"
    path.write_text("two\n")
    assert prepare(credentials).authorization == "Bearer two"


@pytest.mark.parametrize("content", ["", "\n", "a b", "a\nX-Header: b", "\u00e9", "a\x00b", "a\x1bb", "a\x7fb"])
def test_a_token_that_no_header_can_carry_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(CredentialsError):
        prepare(Credentials(access(login=TokenFile(tmp_path / "token"))))


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"the test: .*No such file.*token"):
        prepare(Credentials(access(login=TokenFile(tmp_path / "token"))))


def test_d21_a_rotated_authority_makes_a_new_tls_context_and_nothing_else_does(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    credentials = Credentials(access(ca=InFile(path)))
    path.write_bytes(trustme.CA().cert_pem.bytes())
    first = prepare(credentials).tls
    assert prepare(credentials).tls is first
    path.write_bytes(trustme.CA().cert_pem.bytes())
    assert prepare(credentials).tls is not first
    path.write_text("not a certificate")
    with pytest.raises(CredentialsError, match="the test"):
        prepare(credentials)


def test_client_certificates_leave_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cert = trustme.CA().issue_cert("client")
    pair = ClientCertificate(Inline(cert.cert_chain_pems[0].bytes()), Inline(cert.private_key_pem.bytes()))
    assert prepare(Credentials(access(client_certificate=pair))).tls is not None
    assert list(tmp_path.iterdir()) == []
    other = ClientCertificate(pair.certificate, Inline(trustme.CA().issue_cert("x").private_key_pem.bytes()))
    with pytest.raises(CredentialsError):
        prepare(Credentials(access(client_certificate=other)))
    assert list(tmp_path.iterdir()) == []


def plugin(folder: Path, script: str) -> Exec:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\necho run >>{folder}/runs\n{script}\n")
    path.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    return Exec(str(path), ("arg",), (("EXTRA", "x"),), version, True, "install it\n")


def credential(**status: Any) -> str:
    return json.dumps({"kind": "ExecCredential", "status": status})


def runs(folder: Path) -> int:
    return (folder / "runs").read_text().count("run")


def test_exec_plugins_are_run_once_until_expiry_or_refusal(tmp_path: Path) -> None:
    expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    credentials = Credentials(
        access(login=plugin(tmp_path, f"echo '{credential(token='t', expirationTimestamp=expires)}'"))
    )
    assert prepare(credentials).authorization == "Bearer t"
    assert prepare(credentials).authorization == "Bearer t"
    assert runs(tmp_path) == 1
    credentials.reload()
    prepare(credentials)
    assert runs(tmp_path) == 2


def test_an_exec_credential_about_to_expire_is_fetched_anew(tmp_path: Path) -> None:
    expires = (datetime.now(UTC) + timedelta(seconds=20)).isoformat()
    credentials = Credentials(
        access(login=plugin(tmp_path, f"echo '{credential(token='t', expirationTimestamp=expires)}'"))
    )
    prepare(credentials)
    prepare(credentials)
    assert runs(tmp_path) == 2


def test_exec_plugins_are_told_of_the_cluster_and_may_give_certificates(tmp_path: Path) -> None:
    cert = trustme.CA().issue_cert("client")
    pem = {
        "clientCertificateData": cert.cert_chain_pems[0].bytes().decode(),
        "clientKeyData": cert.private_key_pem.bytes().decode(),
    }
    (tmp_path / "answer").write_text(credential(**pem))
    script = f'echo "$KUBERNETES_EXEC_INFO $EXTRA $1" >{tmp_path}/told\ncat {tmp_path}/answer'
    prepared = prepare(Credentials(access(login=plugin(tmp_path, script))))
    assert prepared.authorization is None
    assert prepared.tls is not None
    told = (tmp_path / "told").read_text()
    info = json.loads(told.removesuffix(" x arg\n"))
    assert info["spec"] == {"interactive": False, "cluster": {"server": "https://api"}}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo nonsense", "no ExecCredential"),
        ("echo '{\"status\": {}}'", "neither a token"),
        ("echo boom >&2; exit 3", "ended with 3: boom"),
    ],
)
def test_an_exec_plugin_that_fails_says_how(tmp_path: Path, script: str, reason: str) -> None:
    with pytest.raises(CredentialsError, match=reason):
        prepare(Credentials(access(login=plugin(tmp_path, script))))


def test_a_missing_exec_plugin_comes_with_its_install_hint(tmp_path: Path) -> None:
    login = Exec(str(tmp_path / "none"), (), (), "client.authentication.k8s.io/v1", False, "install it\n")
    with pytest.raises(CredentialsError, match="install it"):
        prepare(Credentials(access(login=login)))


def test_a_cancelled_request_leaves_no_plugin_running(tmp_path: Path) -> None:
    login = plugin(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 1000")

    async def until(what: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0.01)

    async def main() -> None:
        running = asyncio.create_task(Credentials(access(login=login)).prepare())
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()

    asyncio.run(main())


def test_d21_data_in_a_kubeconfig_is_looked_for_again_only_when_the_server_refuses_it() -> None:
    found = [access(login=Token("two"), ca=Inline(trustme.CA().cert_pem.bytes()))]
    credentials = Credentials(access(login=Token("one"), ca=Inline(trustme.CA().cert_pem.bytes())), found.pop)
    first = prepare(credentials)
    assert prepare(credentials).authorization == "Bearer one"
    credentials.reload()
    second = prepare(credentials)
    assert (second.authorization, found) == ("Bearer two", [])
    assert second.tls is not first.tls
    assert prepare(credentials).tls is second.tls
