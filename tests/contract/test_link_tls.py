"""The link over TLS: own authority, mutual TLS, another name, and every way in which the two sides do not match."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme

from enginehouse.domain.link import LinkErrorKind
from tests.contract.link_peers import GrpcPeer, H2Peer, Run, Server, Sink, failure, linked, runner


@dataclass
class Authority:
    """Files of a test's certificate authority."""

    ca: trustme.CA
    path: Path

    @property
    def file(self) -> str:
        return self._write("ca.pem", self.ca.cert_pem.bytes())

    def client(self) -> tuple[str, str]:
        issued = self.ca.issue_cert("frontend")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        return self._write("client.pem", chain), self._write("client.key", issued.private_key_pem.bytes())

    def server(self, *names: str, ask: bool = False) -> grpc.ServerCredentials:
        issued = self.ca.issue_cert(*names)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        roots = self.ca.cert_pem.bytes() if ask else None
        return grpc.ssl_server_credentials([(issued.private_key_pem.bytes(), chain)], roots, ask)

    def _write(self, name: str, content: bytes) -> str:
        file = self.path / name
        file.write_bytes(content)
        return str(file)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(trustme.CA(), tmp_path)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


@pytest.fixture
def plain() -> Iterator[GrpcPeer]:
    with GrpcPeer() as peer:
        yield peer


def test_tls_with_an_authority_of_our_own(authority: Authority, run: Run) -> None:
    async def main(port: int) -> None:
        async with linked(port, tls=True, ca=authority.file) as link:
            assert await link.unary("/t.T/Echo", bytes(3_000_000), timeout=20) == bytes(3_000_000)
            sink = Sink()
            link.stream("/t.T/Count", b"2000", sink)
            assert await sink.end() is None
            assert sink.count == 2000

    options = (("grpc.max_receive_message_length", -1),)
    with GrpcPeer(authority.server("127.0.0.1"), options) as peer:
        run(main(peer.port))


def test_s9_mutual_tls(authority: Authority, run: Run) -> None:
    cert, key = authority.client()

    async def main(port: int) -> None:
        async with linked(port, tls=True, ca=authority.file, cert=cert, key=key) as link:
            assert await link.unary("/t.T/Echo", b"x", timeout=20) == b"x"
        async with linked(port, tls=True, ca=authority.file) as link:
            error = await failure(link.unary("/t.T/Echo", b"x", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.CONNECT, False)
            assert "client certificate" in error.text

    with GrpcPeer(authority.server("127.0.0.1", ask=True)) as peer:
        run(main(peer.port))


def test_another_name_in_the_certificate(authority: Authority, run: Run) -> None:
    async def main(port: int) -> None:
        async with linked(port, tls=True, ca=authority.file) as link:
            error = await failure(link.unary("/t.T/Echo", b"x", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.CONNECT, False)
            assert "certificate is not accepted" in error.text
        async with linked(port, tls=True, ca=authority.file, server_name="engine.internal") as link:
            assert await link.unary("/t.T/Echo", b"x", timeout=20) == b"x"

    with GrpcPeer(authority.server("engine.internal")) as peer:
        run(main(peer.port))


def test_an_authority_that_we_do_not_trust(authority: Authority, run: Run) -> None:
    async def main(port: int) -> None:
        async with linked(port, tls=True) as link:
            error = await failure(link.unary("/t.T/Echo", b"x", timeout=20))
            assert error.kind == LinkErrorKind.CONNECT
            assert "certificate is not accepted" in error.text
            assert error.text.startswith(f"grpcs://127.0.0.1:{port}: ")

    with GrpcPeer(authority.server("127.0.0.1")) as peer:
        run(main(peer.port))


def test_a_file_that_is_not_there_is_named(run: Run) -> None:
    async def main() -> None:
        async with linked(1, tls=True, ca="/nowhere/ca.pem") as link:
            error = await failure(link.unary("/t.T/Echo", b"x", timeout=20))
            assert error.kind == LinkErrorKind.CONNECT
            assert "/nowhere/ca.pem" in error.text

    run(main())


def test_tls_to_a_port_without_it(plain: GrpcPeer, authority: Authority, run: Run) -> None:
    async def main() -> None:
        async with linked(plain.port, tls=True, ca=authority.file) as link:
            error = await failure(link.unary("/t.T/Echo", b"x", timeout=20))
            assert error.kind == LinkErrorKind.CONNECT
            assert "use grpc://" in error.text

    run(main())


def test_no_tls_to_a_port_with_it(authority: Authority, run: Run) -> None:
    async def main(port: int) -> None:
        async with linked(port) as link:
            error = await failure(link.unary("/t.T/Echo", b"x", timeout=20))
            assert error.kind in (LinkErrorKind.CONNECT, LinkErrorKind.PROTOCOL)
            assert not error.may_have_been_processed
            assert "use grpcs://" in error.text

    with GrpcPeer(authority.server("127.0.0.1")) as peer:
        run(main(peer.port))


def test_a_tls_port_without_http2(authority: Authority, run: Run) -> None:
    async def script(peer: H2Peer) -> None:
        await peer.reader.read()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.ca.issue_cert("127.0.0.1").configure_cert(context)

    async def main() -> None:
        async with Server(script, context) as server, linked(server.port, tls=True, ca=authority.file) as link:
            error = await failure(link.unary("/t.T/Echo", b"x", timeout=20))
            assert (error.kind, error.may_have_been_processed) == (LinkErrorKind.PROTOCOL, False)
            assert "ALPN" in error.text

    run(main())
