"""The tokenizer archive: checked, bounded, reduced to what matters."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile

import pytest
from smg_grpc_proto.generated import common_pb2 as common

from enginehouse.adapters.engines import EngineConnector, ProbeSettings
from enginehouse.adapters.engines.engine import Engine
from enginehouse.adapters.engines.tokenizer_zip import BadTokenizer, unpack
from enginehouse.core.tokenizer_files import digest
from enginehouse.domain.engine import Target
from enginehouse.domain.errors import EngineBroken
from enginehouse.domain.link import LinkError, LinkErrorKind
from tests.unit.adapters.engines.doubles import FakeLink
from tests.unit.adapters.engines.test_connect import vllm_answers

PATH = "/vllm.grpc.engine.VllmEngine/GetTokenizer"
FILES = {"tokenizer.json": b'{"a": 1}' * 1000, "tokenizer_config.json": b"{}", "README.md": b"no"}


def archive(files: dict[str, bytes], folder: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(folder + name, content)
    return buffer.getvalue()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_only_what_matters_is_kept_from_any_folder() -> None:
    for folder in ("", "snapshot/", "../../etc/"):
        packed = archive(FILES, folder)
        found = unpack(packed, sha(packed), 10**6)
        assert found == {name: FILES[name] for name in ("tokenizer.json", "tokenizer_config.json")}


def test_o12_templates_in_the_folder_for_them_are_kept() -> None:
    files = {"tokenizer.json": b"{}", "additional_chat_templates/tool_use.jinja": b"T"}
    more = {"additional_chat_templates/notes.txt": b"n", "other/x.jinja": b"x"}
    for folder in ("", "snapshot/"):
        packed = archive(files | more, folder)
        assert unpack(packed, sha(packed), 10**6) == files


def test_damage_is_found() -> None:
    packed = archive(FILES)
    with pytest.raises(BadTokenizer, match="checksum"):
        unpack(packed, sha(packed + b"x"), 10**6)
    with pytest.raises(BadTokenizer, match="no readable zip"):
        unpack(packed[: len(packed) // 2], "", 10**6)
    with pytest.raises(BadTokenizer, match="no readable zip"):
        unpack(b"", "", 10**6)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_m3_damage_inside_a_compressed_file_is_found(method: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        made.writestr("tokenizer.json", bytes(range(256)) * 400)
    whole = buffer.getvalue()
    for place in range(44, len(whole) - 100, 7):
        damaged = bytearray(whole)
        damaged[place : place + 4] = b"\xff\x00\xff\x13"
        with pytest.raises(BadTokenizer, match="no readable zip"):
            unpack(bytes(damaged), "", 10**6)


def test_a_bomb_is_not_unpacked() -> None:
    packed = archive({"tokenizer.json": b"\0" * 5_000_000})
    assert len(packed) < 10_000
    with pytest.raises(BadTokenizer, match="more than"):
        unpack(packed, "", 1_000_000)


def test_the_digest_is_of_content_not_of_packing() -> None:
    first = unpack(archive(FILES), "", 10**6)
    second = unpack(archive(dict(reversed(FILES.items())), "x/"), "", 10**6)
    assert digest(first) == digest(second) is not None
    assert digest({**first, "tokenizer.json": b"{}"}) != digest(first)
    assert digest({"config.json": b"{}"}) is None


def test_d17_the_digest_is_read_once_and_again_after_a_lost_connection() -> None:
    async def run() -> None:
        chunks = [common.GetTokenizerChunk(data=archive(FILES)).SerializeToString()]
        link = FakeLink(vllm_answers(), {PATH: chunks})
        engine = await EngineConnector(lambda _: link).probe(Target("10.0.0.7", 1))
        chunks[0] = common.GetTokenizerChunk(data=archive({"tokenizer.json": b"other"})).SerializeToString()
        assert (await engine.check()).tokenizer_digest == digest(FILES)
        for heard in link.lost:
            heard(LinkError(LinkErrorKind.LOST, "cut", may_have_been_processed=True))
        assert (await engine.check()).tokenizer_digest == digest({"tokenizer.json": b"other"})

    asyncio.run(run())


def probed(packed: bytes, checksum: str, limit: int = 10**6) -> Engine:
    half = len(packed) // 2
    chunks = [
        common.GetTokenizerChunk(data=packed[:half]),
        common.GetTokenizerChunk(data=packed[half:], sha256=checksum),
    ]
    link = FakeLink(vllm_answers(), {PATH: [chunk.SerializeToString() for chunk in chunks]})

    async def run() -> Engine:
        settings = ProbeSettings(tokenizer_limit=limit)
        return await EngineConnector(lambda _: link, settings).probe(Target("10.0.0.7", 1))

    return asyncio.run(run())


def test_an_engine_hands_its_tokenizer_out_in_pieces() -> None:
    packed = archive(FILES)
    engine = probed(packed, sha(packed))
    assert engine.info.tokenizer_digest == digest(FILES)
    assert asyncio.run(_files(engine))["tokenizer.json"] == FILES["tokenizer.json"]


@pytest.mark.parametrize("limit", [10**6, 100])
def test_an_unusable_tokenizer_keeps_no_engine_out_but_is_an_error_for_who_asks(limit: int) -> None:
    packed = archive(FILES)
    engine = probed(packed, sha(b"") if limit > 100 else sha(packed), limit)
    assert engine.info.tokenizer_digest is None
    with pytest.raises(EngineBroken, match="larger" if limit == 100 else "cannot be used"):
        asyncio.run(_files(engine))


async def _files(engine: Engine) -> dict[str, bytes]:
    return dict(await engine.tokenizer_files())
