"""The pod feed against an API server that misbehaves on purpose, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import enginehouse.adapters.kube.feed as feed_module
from enginehouse.adapters.kube import KubeSettings, PodFeed, open_api
from enginehouse.domain.feed import FeedListed
from tests.rigs.fake_kube import Answer, FakeKube, Request
from tests.rigs.kube_ear import Ear, listening
from tests.rigs.kube_objects import pod

Test = Callable[[FakeKube, Ear], Awaitable[None]]


def make_feed(config: str, selector: str = "app=x", **settings: Any) -> PodFeed:
    made = KubeSettings(kubeconfig=config, **settings)
    return PodFeed("pods", open_api(made), selector, made.rules(port=8000), made)


def against(
    folder: Path,
    test: Test,
    *,
    before: Callable[[FakeKube], None] | None = None,
    user: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    async def main() -> None:
        async with FakeKube() as server:
            server.put(pod("a", ip="10.0.0.1"))
            server.put(pod("b", ip="10.0.0.2"))
            if before is not None:
                before(server)
            async with listening(make_feed(server.kubeconfig(folder, user), **settings)) as ear:
                await test(server, ear)

    asyncio.run(main())


async def expired(_: Request, answer: Answer) -> None:
    answer.begin()
    await answer.error(410)
    answer.end()


async def gone(_: Request, answer: Answer) -> None:
    await answer.refuse(410, "too old resource version")


async def silent(_: Request, answer: Answer) -> None:
    answer.begin()
    await answer.raw(b"\n")
    await answer.left()


def test_it_lists_then_watches_and_follows(tmp_path: Path) -> None:
    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_serving("a", "b")
        await ear.until_watching()
        server.put(pod("c", ip="10.0.0.3"))
        await ear.until_serving("a", "b", "c")
        server.put(pod("a", ip="10.0.0.1", ready=False))
        await ear.until_serving("b", "c")
        assert ear.pods() == ["a", "b", "c"]
        assert ear.feed.status().listings == 1
        (watch,) = server.asked(watch=True)
        assert (watch.query["resourceVersion"], watch.query["allowWatchBookmarks"]) == ("102", "true")
        assert 300 <= int(watch.query["timeoutSeconds"]) <= 600

    against(tmp_path, test)


def test_d1_a_deletion_in_a_watch_gap_is_found_at_once(tmp_path: Path) -> None:
    async def cut(_: Request, answer: Answer) -> None:
        answer.begin()
        await answer.raw(b"\n")
        await ready_to_cut.wait()
        answer.cut()

    ready_to_cut = asyncio.Event()

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_watching()
        server.delete_unseen("a")
        ready_to_cut.set()
        await ear.until_serving("b")
        assert ear.pods() == ["b"]

    against(tmp_path, test, before=lambda server: server.watches.append(cut))


@pytest.mark.parametrize("shape", [expired, gone], ids=["inside a 200", "as HTTP status"])
def test_d2_expiry_in_either_shape_lists_once_per_failure(
    tmp_path: Path, shape: Callable[[Request, Answer], Awaitable[None]]
) -> None:
    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: len(server.asked(watch=True)) == 4)
        await ear.until_watching()
        server.put(pod("c", ip="10.0.0.3"))
        await ear.until_serving("a", "b", "c")
        assert len(server.asked(watch=False)) == 4
        assert "666" not in {request.query["resourceVersion"] for request in server.asked(watch=True)}

    against(tmp_path, test, before=lambda server: server.watches.extend([shape] * 3))


def test_d3_a_half_open_watch_does_not_hide_a_pod(tmp_path: Path) -> None:
    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_serving("a", "b")
        await ear.until_watching()
        server.put(pod("c", ip="10.0.0.3"))
        await ear.until_serving("a", "b", "c")
        await ear.until(lambda: server.open == 1)  # the half-open one was let go
        server.delete("c")
        await ear.until_serving("a", "b")
        assert server.asked(watch=True)[-1].query["resourceVersion"] == "103"

    against(tmp_path, test, before=lambda server: server.watches.append(silent), resync_interval=0.4)


def test_d3_a_watch_that_says_nothing_is_abandoned_even_if_nothing_changed(tmp_path: Path) -> None:
    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: len(server.asked(watch=True)) >= 3)
        assert server.open <= 2

    against(
        tmp_path,
        test,
        before=lambda server: server.watches.extend([silent] * 9),
        resync_interval=0.2,
        watch_idle_limit=0.3,
    )


def test_d3_a_list_or_watch_that_is_never_answered_is_given_up(tmp_path: Path) -> None:
    async def mute(_: Request, answer: Answer) -> None:
        await answer.left()

    def before(server: FakeKube) -> None:
        server.lists.append(mute)
        server.watches.append(mute)

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: ear.feed.status().error is not None)
        assert "0.3 s" in str(ear.feed.status().error)
        await ear.until(lambda: len(server.asked(watch=True)) == 2)
        await ear.until_watching()
        await ear.until_serving("a", "b")

    against(tmp_path, test, before=before, request_timeout=0.3)


@pytest.mark.parametrize(
    "garbage",
    [b"<html>\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": {"metadata": {}}}\n', b"\xff\xfe\n", b"[]\n"],
)
def test_garbage_on_the_watch_ends_in_a_listing(tmp_path: Path, garbage: bytes) -> None:
    async def bad(_: Request, answer: Answer) -> None:
        answer.begin()
        await answer.raw(garbage)
        await answer.left()

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: ear.feed.status().listings == 2)
        await ear.until_watching()
        server.delete("a")
        await ear.until_serving("b")
        assert ear.feed.status().error is None

    against(tmp_path, test, before=lambda server: server.watches.append(bad))


def test_lines_of_any_length_in_any_pieces(tmp_path: Path) -> None:
    big = pod("big", ip="10.0.0.9", annotations={"notes": "x" * 3_000_000})

    async def pieces(_: Request, answer: Answer) -> None:
        answer.begin()
        events = [("ADDED", pod("c", ip="10.0.0.3", version="200")), ("DELETED", pod("a", version="201"))]
        text = "".join(json.dumps({"type": kind, "object": item}) + "\n" for kind, item in events).encode()
        for place in range(len(text)):
            await answer.raw(text[place : place + 1])
        await answer.event("ADDED", big)
        together = [("DELETED", pod("c", version="203")), ("DELETED", pod("b", version="204"))]
        await answer.raw(
            "\r\n".join(json.dumps({"type": kind, "object": item}) for kind, item in together).encode() + b"\n"
        )
        await answer.left()

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_serving("big")
        assert ear.feed.status().listings == 1

    against(tmp_path, test, before=lambda server: server.watches.append(pieces))


def test_errors_inside_the_stream_resume_with_the_last_good_version(tmp_path: Path) -> None:
    async def failing(_: Request, answer: Answer) -> None:
        answer.begin()
        await answer.event("ADDED", pod("c", ip="10.0.0.3", version="150"))
        await answer.error(500)
        answer.end()

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: len(server.asked(watch=True)) == 2)
        assert server.asked(watch=True)[1].query["resourceVersion"] == "150"
        assert len(server.asked(watch=False)) == 1
        assert ear.serving() == ["a", "b", "c"]

    against(tmp_path, test, before=lambda server: server.watches.append(failing))


def test_bookmarks_and_unknown_events_are_no_pods(tmp_path: Path) -> None:
    async def speaking(_: Request, answer: Answer) -> None:
        answer.begin()
        await answer.event("SOMETHING", {"whatever": 1})
        bookmark = {"metadata": {"resourceVersion": "300"}, "spec": {"containers": None}, "status": {}}
        await answer.event("BOOKMARK", {"kind": "Pod", **bookmark})
        answer.end()

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: len(server.asked(watch=True)) == 2)
        assert server.asked(watch=True)[1].query["resourceVersion"] == "300"
        assert len(server.asked(watch=False)) == 1
        assert ear.pods() == ["a", "b"]

    against(tmp_path, test, before=lambda server: server.watches.append(speaking))


def test_pages_are_read_to_the_end_and_an_expired_one_starts_over(tmp_path: Path) -> None:
    def before(server: FakeKube) -> None:
        for number in range(8):
            server.put(pod(f"p{number}", ip=f"10.0.1.{number}"))
        server.lists.extend([server.list, gone])

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_watching()
        assert len(ear.serving()) == 10
        lists = server.asked(watch=False)
        assert [request.query.get("continue") for request in lists] == [None, "4", None, "4", "8"]
        assert all("resourceVersion" not in request.query for request in lists)
        assert [type(event) for event in ear.events] == [FeedListed]

    against(tmp_path, test, before=before, page_size=4)


def test_a_busy_api_server_is_left_alone_as_long_as_it_asks(tmp_path: Path) -> None:
    async def busy(_: Request, answer: Answer) -> None:
        await answer.refuse(429, "too many requests", Retry_After="1")

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: ear.feed.status().error is not None)
        status = ear.feed.status()
        assert "429" in str(status.error)
        assert (status.state, status.synced) == ("backing off", False)
        assert status.next_try_at is not None
        await ear.until_serving("a", "b")
        await ear.until_watching()
        assert ear.feed.status().error is None

    against(tmp_path, test, before=lambda server: server.lists.append(busy))


def test_a_watch_that_is_forbidden_is_said_and_listings_follow_the_pods(tmp_path: Path) -> None:
    async def forbidden(_: Request, answer: Answer) -> None:
        await answer.refuse(403, 'pods is forbidden: User "x" cannot watch resource "pods"')

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: ear.feed.status().error is not None)
        assert 'not allowed to watch pods in namespace "default" (403; RBAC)' in str(ear.feed.status().error)
        server.put(pod("c", ip="10.0.0.3"))
        await ear.until_serving("a", "b", "c")
        assert ear.feed.status().error is not None

    against(tmp_path, test, before=lambda server: server.watches.extend([forbidden] * 99), backoff_limit=0.5)


def test_an_answer_that_is_no_list_is_a_failure_and_takes_nothing_away(tmp_path: Path) -> None:
    async def page(_: Request, answer: Answer) -> None:
        await answer.whole(b"<html>login</html>")

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_serving("a", "b")
        server.lists.append(page)
        await ear.until(lambda: ear.feed.status().error is not None)
        assert "login" in str(ear.feed.status().error)
        assert ear.serving() == ["a", "b"]
        await ear.until(lambda: ear.feed.status().error is None)

    against(tmp_path, test, resync_interval=0.2)


def test_one_malformed_pod_costs_no_other(tmp_path: Path) -> None:
    def before(server: FakeKube) -> None:
        broken = pod("broken", ip="10.0.0.7")
        broken["status"]["conditions"] = "none"
        server.put(broken)

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_serving("a", "b")
        assert ear.wanted("broken").reason.startswith("unreadable pod")

    against(tmp_path, test, before=before)


def test_an_empty_list_may_be_null(tmp_path: Path) -> None:
    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: ear.events)
        assert ear.events == [FeedListed("pods", ())]

    against(tmp_path, test, before=lambda server: server.pods.clear())


def test_d21_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old\n")
    good = "old"

    async def guard(request: Request, answer: Answer) -> None:
        if request.headers.get("authorization") != f"Bearer {good}":
            await answer.refuse(401, "Unauthorized")
        elif request.is_watch:
            await servers[0].watch(request, answer)
        else:
            await servers[0].list(request, answer)

    servers: list[FakeKube] = []

    def before(server: FakeKube) -> None:
        servers.append(server)
        server.every = guard

    async def test(server: FakeKube, ear: Ear) -> None:
        nonlocal good
        await ear.until_serving("a", "b")
        good = "new"
        await ear.until(lambda: ear.feed.status().error is not None)
        assert "401" in str(ear.feed.status().error)
        assert ear.serving() == ["a", "b"]
        (tmp_path / "token").write_text("new\n")
        await ear.until(lambda: ear.feed.status().error is None)
        server.put(pod("c", ip="10.0.0.3"))
        await ear.until_serving("a", "b", "c")

    against(tmp_path, test, before=before, user={"tokenFile": "token"}, resync_interval=0.2)


def guarded(good: list[str]) -> Callable[[FakeKube], None]:
    """Every request must carry the one token that `good` holds at that time."""

    def before(server: FakeKube) -> None:
        async def guard(request: Request, answer: Answer) -> None:
            if request.headers.get("authorization") != f"Bearer {good[0]}":
                await answer.refuse(401, "Unauthorized")
            elif request.is_watch:
                await server.watch(request, answer)
            else:
                await server.list(request, answer)

        server.every = guard

    return before


def test_d21_a_token_that_stands_in_the_kubeconfig_is_read_again(tmp_path: Path) -> None:
    good = ["old"]

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_serving("a", "b")
        good[0] = "new"
        await ear.until(lambda: "401" in str(ear.feed.status().error))
        (tmp_path / "kubeconfig").write_text("current-context: [")
        await ear.until(lambda: "is not YAML" in str(ear.feed.status().error))
        assert ear.serving() == ["a", "b"]
        server.kubeconfig(tmp_path, {"token": "new"})
        await ear.until(lambda: ear.feed.status().error is None)
        server.put(pod("c", ip="10.0.0.3"))
        await ear.until_serving("a", "b", "c")

    against(tmp_path, test, before=guarded(good), user={"token": "old"}, resync_interval=0.2, backoff_limit=0.3)


def test_d21_new_credentials_are_not_taken_to_another_server(tmp_path: Path) -> None:
    good = ["old"]

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_serving("a", "b")
        server.kubeconfig(tmp_path, {"token": "others"}, prefix="/elsewhere")
        good[0] = "new"
        await ear.until(lambda: "another API server" in str(ear.feed.status().error))
        assert "Bearer others" not in {request.headers.get("authorization") for request in server.requests}

    against(tmp_path, test, before=guarded(good), user={"token": "old"}, resync_interval=0.2, backoff_limit=0.3)


@pytest.mark.parametrize("token", ["a\x00b", "a\x1bb", "a\x7fb"])
def test_d21_a_token_with_a_control_character_does_not_end_the_feed(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: "a header cannot carry" in str(ear.feed.status().error))
        (tmp_path / "token").write_text("good")
        await ear.until_serving("a", "b")

    against(tmp_path, test, user={"tokenFile": "token"}, backoff_limit=0.2)


def test_d21_a_kubeconfig_token_that_no_header_can_carry_is_read_again(tmp_path: Path) -> None:
    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until(lambda: "a header cannot carry" in str(ear.feed.status().error))
        server.kubeconfig(tmp_path, {"token": "good"})
        await ear.until_serving("a", "b")

    against(tmp_path, test, user={"token": "a\x1bb"}, backoff_limit=0.2)


def test_an_error_that_nobody_thought_of_does_not_end_the_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_page, real_line, bad = feed_module.read_page, feed_module.read_line, ["page", "line"]

    def read_page(*args: Any) -> Any:
        if bad and bad[0] == "page":
            raise LookupError(bad.pop(0))
        return real_page(*args)

    def read_line(*args: Any) -> Any:
        if bad and bad[0] == "line":
            raise LookupError(bad.pop(0))
        return real_line(*args)

    monkeypatch.setattr(feed_module, "read_page", read_page)
    monkeypatch.setattr(feed_module, "read_line", read_line)

    async def test(server: FakeKube, ear: Ear) -> None:
        with capture_logs() as logs:
            await ear.until_watching()
            server.put(pod("c", ip="10.0.0.3"))
            await ear.until_serving("a", "b", "c")
            await ear.until_watching()
        told = [log for log in logs if "exc_info" in log]
        assert [log["doing"] for log in told] == ["list pods", "watch pods"]
        assert all(isinstance(log["exc_info"], LookupError) for log in told)
        assert any("LookupError" in str(log.get("error")) for log in logs), "the status said so"

    against(tmp_path, test)


def test_a_bug_in_our_own_machine_does_end_the_feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with FakeKube() as server:
            feed = make_feed(server.kubeconfig(tmp_path))

            def post(_: object) -> None:
                raise ZeroDivisionError

            with pytest.raises(ExceptionGroup) as caught:
                await feed.run(post)
            assert caught.value.subgroup(ZeroDivisionError)

    asyncio.run(main())


def test_d25_the_whole_selector_is_in_the_url_set_based_forms_encoded(tmp_path: Path) -> None:
    selector = "app in (vllm, sglang),tier notin (test),!canary,x.io/role!=prefill"

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_watching()
        await ear.until(lambda: len(server.requests) == 2)
        for request in server.requests:
            assert request.query["labelSelector"] == selector
            assert request.path == "/api/v1/namespaces/default/pods"
            assert not set(" (),!") & set(request.target)

    against(tmp_path, test, selector=selector)


def test_d25_start_and_stop_leaves_neither_tasks_nor_sockets(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as server:
            server.put(pod("a"))
            feed = make_feed(server.kubeconfig(tmp_path))
            for turn in range(100):
                async with listening(feed) as ear:
                    match turn % 4:
                        case 0:
                            pass
                        case 1:
                            await asyncio.sleep(0)
                        case 2:
                            await ear.until(lambda: server.requests)
                        case 3:
                            await ear.until_watching()
                server.requests.clear()
                assert [task for task in asyncio.all_tasks() if task.get_name().startswith("pods:")] == []
            async with listening(feed) as ear:
                await ear.until_watching()
                await ear.until(lambda: server.open == 1)
            await ear.until(lambda: server.open == 0)

    asyncio.run(main())


def test_a_server_whose_name_cannot_be_is_a_failure_that_stands(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as server:
            path = Path(server.kubeconfig(tmp_path))
            path.write_text(path.read_text().replace("127.0.0.1", "a..b"))
            async with listening(make_feed(str(path))) as ear:
                await ear.until(lambda: "no connection to a..b" in str(ear.feed.status().error))

    asyncio.run(main())


def test_all_namespaces_and_a_server_below_a_path(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as server:
            server.put(pod("a"))
            feed = make_feed(server.kubeconfig(tmp_path, prefix="/k8s/clusters/c-1"), all_namespaces=True)
            async with listening(feed) as ear:
                await ear.until_serving("a")
            assert server.requests[0].path == "/k8s/clusters/c-1/api/v1/pods"

    asyncio.run(main())


def test_proxy_variables_of_the_environment_are_not_for_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def test(server: FakeKube, ear: Ear) -> None:
        await ear.until_serving("a", "b")

    against(tmp_path, test)


def test_a_fault_of_the_listener_ends_the_feed_loudly(tmp_path: Path) -> None:
    def bad(_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        async with FakeKube() as server:
            with pytest.raises(ExceptionGroup) as caught:
                await make_feed(server.kubeconfig(tmp_path)).run(bad)
            assert caught.group_contains(RuntimeError, match="a bug")

    asyncio.run(main())
