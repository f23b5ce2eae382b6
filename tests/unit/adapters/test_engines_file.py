"""The engines file as a feed: followed through rewrites, new files and swapped links; faults keep the last list."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from enginehouse.adapters import engines_file
from enginehouse.adapters.engines_file import EnginesFileSettings, FileFeed
from enginehouse.adapters.fixed import FixedFeed
from enginehouse.domain.engine import Target
from enginehouse.domain.feed import FeedEvent, FeedListed

FAST = EnginesFileSettings(poll_interval=0.01, settle_time=0.005)


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.005)


def follow(
    path: Path, test: Callable[[FileFeed, list[list[str]]], Awaitable[None]], settings: EnginesFileSettings = FAST
) -> None:
    async def main() -> None:
        posted: list[list[str]] = []

        def post(event: FeedEvent) -> None:
            assert isinstance(event, FeedListed)
            posted.append([one.engine_id for one in event.wanted])

        feed = FileFeed(path, settings)
        running = asyncio.create_task(feed.run(post), name="feed")
        try:
            await test(feed, posted)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_it_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text("- grpc://a:1\n")

    async def test(feed: FileFeed, posted: list[list[str]]) -> None:
        await until(lambda: len(posted) == 1)
        path.write_text("- grpc://a:1\n- grpc://b:2\n")
        await until(lambda: len(posted) == 2)
        path.write_text("[]")
        await until(lambda: len(posted) == 3)
        assert posted == [["grpc://a:1"], ["grpc://a:1", "grpc://b:2"], []]
        status = feed.status()
        assert (status.synced, status.listings, status.error, status.state) == (True, 3, None, "following")
        assert status.confirmed_at is not None

    follow(path, test)


def test_what_changes_nothing_is_not_posted(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text("- grpc://a:1\n")

    async def test(feed: FileFeed, posted: list[list[str]]) -> None:
        await until(lambda: len(posted) == 1)
        path.write_text("# a comment\n- grpc://a:1\n")
        await until(lambda: feed._content == path.read_bytes())
        path.write_text("- grpc://b:1\n")
        await until(lambda: len(posted) == 2)
        assert posted == [["grpc://a:1"], ["grpc://b:1"]]

    follow(path, test)


def test_bad_content_keeps_the_last_good_list_and_is_logged_once(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text("- grpc://a:1\n")

    async def test(feed: FileFeed, posted: list[list[str]]) -> None:
        await until(lambda: len(posted) == 1)
        with capture_logs() as logs:
            path.write_text("- grpc://a:1\n- http://b:2\n")
            await until(lambda: feed.status().error is not None)
            tried = feed.status().next_try_at
            await until(lambda: feed.status().next_try_at not in (None, tried))
        status = feed.status()
        assert status.synced
        assert status.error is not None
        assert "engines.yaml: line 2, column 3 (entry 2): 'http://b:2'" in status.error
        assert status.state == "keeping the last good list"
        assert [log["log_level"] for log in logs] == ["warning"]
        assert posted == [["grpc://a:1"]]
        path.write_text("- grpc://a:1\n")
        await until(lambda: feed.status().error is None)
        assert posted == [["grpc://a:1"]]

    follow(path, test)


def test_a_file_that_is_missing_at_first_and_later(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"

    async def test(feed: FileFeed, posted: list[list[str]]) -> None:
        await until(lambda: feed.status().error is not None)
        status = feed.status()
        assert (status.synced, status.state) == (False, "waiting for a good list")
        assert "No such file" in str(status.error)
        path.write_text("- grpc://a:1\n")
        await until(lambda: feed.status().error is None and posted)
        path.unlink()
        await until(lambda: feed.status().error is not None)
        assert feed.status().synced
        path.write_text("- grpc://b:1\n")
        await until(lambda: len(posted) == 2)
        assert posted == [["grpc://a:1"], ["grpc://b:1"]]

    follow(path, test)


def test_a_config_map_is_followed_through_its_swapped_links(tmp_path: Path) -> None:
    for name, content in (("..one", "- grpc://a:1\n"), ("..two", "- grpc://b:1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "engines.yaml").write_text(content)
        os.utime(tmp_path / name / "engines.yaml", (1, 1))  # same size, same time
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "engines.yaml").symlink_to("..data/engines.yaml")

    async def test(feed: FileFeed, posted: list[list[str]]) -> None:
        await until(lambda: len(posted) == 1)
        (tmp_path / "..data.new").symlink_to("..two")
        os.replace(tmp_path / "..data.new", tmp_path / "..data")
        await until(lambda: len(posted) == 2)
        assert posted == [["grpc://a:1"], ["grpc://b:1"]]

    follow(tmp_path / "engines.yaml", test)


def test_a_fifo_is_refused_at_once_and_a_file_in_its_place_is_read(tmp_path: Path) -> None:
    path = tmp_path / "engines.yaml"
    os.mkfifo(path)

    async def test(feed: FileFeed, posted: list[list[str]]) -> None:
        await until(lambda: "not a regular file" in str(feed.status().error))
        path.unlink()
        path.write_text("- grpc://a:1\n")
        await until(lambda: posted == [["grpc://a:1"]])

    follow(path, test)


def test_a_read_that_hangs_is_told_costs_one_thread_and_is_taken_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text("- grpc://a:1\n")
    back, real, reads = threading.Event(), engines_file._read_regular, []

    def slow(path: Path) -> bytes:
        reads.append(path)
        back.wait(30)
        return real(path)

    monkeypatch.setattr(engines_file, "_read_regular", slow)

    async def test(feed: FileFeed, posted: list[list[str]]) -> None:
        await until(lambda: "takes more than" in str(feed.status().error))
        tried = feed.status().next_try_at
        await until(lambda: feed.status().next_try_at not in (None, tried))
        assert len(reads) == 1
        back.set()
        await until(lambda: posted == [["grpc://a:1"]])
        assert feed.status().error is None

    try:
        follow(path, test, EnginesFileSettings(poll_interval=0.01, settle_time=0, read_timeout=0.05))
    finally:
        back.set()


def test_a_process_whose_read_hangs_ends_all_the_same(tmp_path: Path) -> None:
    program = """
import asyncio, sys, threading
from enginehouse.adapters import engines_file
engines_file._read_regular = lambda path: threading.Event().wait()
async def main():
    feed = engines_file.FileFeed("x", engines_file.EnginesFileSettings(read_timeout=0.05))
    running = asyncio.create_task(feed.run(print))
    while feed.status().error is None:
        await asyncio.sleep(0.01)
    running.cancel()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_an_error_that_nobody_thought_of_does_not_end_the_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text("- grpc://a:1\n")

    def broken(content: bytes) -> None:
        raise LookupError

    monkeypatch.setattr(engines_file, "read_engine_list", broken)

    async def test(feed: FileFeed, posted: list[list[str]]) -> None:
        await until(lambda: "LookupError" in str(feed.status().error))
        monkeypatch.undo()
        path.write_text("- grpc://b:1\n")
        await until(lambda: posted == [["grpc://b:1"]])

    follow(path, test)


def test_a_fixed_feed_posts_once_and_returns() -> None:
    async def main() -> None:
        posted: list[FeedEvent] = []
        feed = FixedFeed([Target("a", 1), Target("fd00::5", 2)])
        assert not feed.status().synced
        await feed.run(posted.append)
        (event,) = posted
        assert isinstance(event, FeedListed)
        assert [one.engine_id for one in event.wanted] == ["grpc://a:1", "grpc://[fd00::5]:2"]
        assert feed.status().synced

    asyncio.run(main())
