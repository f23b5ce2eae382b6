"""The pod feed against a real kube-apiserver; `kube_pod.Pods` plays the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from enginehouse.adapters.kube import KubeApi, KubeSettings, PodFeed, open_api
from enginehouse.adapters.kube.http import RequestFailed
from enginehouse.domain.engine import Role
from tests.rigs.gate import Gate
from tests.rigs.kube import KubeServer, kube
from tests.rigs.kube_ear import Ear, listening

__all__ = ["kube"]

pytestmark = pytest.mark.rig("kube")

LABELS = {"app": "engine"}
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts"


@pytest.fixture(autouse=True)
def no_pods_left(kube: KubeServer) -> Iterator[None]:
    yield
    for name in kube.names():
        kube.pods.release(name)
        if name in kube.names():
            kube.pods.gone(name)


def make_feed(kube: KubeServer, selector: str = "app=engine", *, role: Role | None = None, **settings: Any) -> PodFeed:
    settings.setdefault("kubeconfig", str(kube.kubeconfig))
    made = KubeSettings(**settings)
    return PodFeed("pods", open_api(made), selector, made.rules(port=8000, role=role), made)


def follow(feed: PodFeed, test: Callable[[Ear], Awaitable[None]]) -> None:
    async def main() -> None:
        async with listening(feed) as ear:
            await ear.until_watching()
            await test(ear)

    asyncio.run(main())


async def do(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The kubelet works in a thread: the feed must be able to listen meanwhile."""
    return await asyncio.to_thread(work, *arguments, **options)


def test_pods_join_and_leave_on_readiness(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        assert ear.all() == []
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS, ready=False)
        await ear.until(lambda: ear.pods() == ["w1"] and ear.wanted("w1").reason.startswith("not ready"))
        await do(kube.pods.set, "w1", ready=True)
        await ear.until_serving("w1")
        ready = ear.wanted("w1")
        assert ready.target is not None
        assert ready.target.url == "grpc://10.1.0.1:8000"
        await do(kube.pods.set, "w1", ready=False)
        await ear.until_serving()
        await do(kube.pods.set, "w1", ready=True)
        await ear.until_serving("w1")
        assert ear.wanted("w1") == ready
        assert ear.feed.status().listings == 1

    follow(make_feed(kube), test)


def test_d11_a_terminating_pod_is_withdrawn_while_it_is_still_ready(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await ear.until_serving("w1")
        await do(kube.pods.delete, "w1")
        await ear.until_serving()
        assert ear.wanted("w1").reason == "terminating"
        await do(kube.pods.gone, "w1")
        await ear.until(lambda: ear.all() == [])

    follow(make_feed(kube), test)


def test_d4_bare_deleted_withdraws_at_once(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await ear.until_serving("w1")
        await do(kube.pods.gone, "w1")  # no grace: the API server sends DELETED
        await ear.until(lambda: ear.all() == [])

    follow(make_feed(kube), test)


def test_d8_a_label_edit_takes_a_pod_out_and_moves_it_between_pools(kube: KubeServer) -> None:
    async def main() -> None:
        serving = make_feed(kube, "app=engine,role!=prefill")
        prefill = make_feed(kube, "app=engine,role in (prefill)", role=Role.PREFILL)
        async with listening(serving) as one, listening(prefill) as two:
            await one.until_watching()
            await two.until_watching()
            await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
            await one.until_serving("w1")
            assert two.all() == []
            await do(kube.pods.set, "w1", labels={"role": "prefill"})
            await one.until(lambda: one.all() == [])
            await two.until_serving("w1")
            assert two.wanted("w1").target.role is Role.PREFILL  # type: ignore[union-attr]
            await do(kube.pods.set, "w1", labels={"app": "other"})
            await two.until(lambda: two.all() == [])

    asyncio.run(main())


@pytest.mark.parametrize("merged", [True, False])
def test_d6_a_container_restart_is_another_generation(kube: KubeServer, merged: bool) -> None:
    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await ear.until_serving("w1")
        before = ear.wanted("w1")
        await do(kube.pods.restart, "w1", merged)
        await ear.until(lambda: ear.serving() == ["w1"] and ear.wanted("w1").generation != before.generation)
        after = ear.wanted("w1")
        assert (after.engine_id, after.target) == (before.engine_id, before.target)
        if merged:
            assert all(one.eligible for event in ear.events[-1:] for one in event.wanted)

    follow(make_feed(kube), test)


def test_d6_a_new_port_annotation_is_another_engine(kube: KubeServer) -> None:
    name = KubeSettings().port_annotation

    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS, {name: "9000,9001"})
        await ear.until_serving("w1", "w1")
        await do(kube.pods.set, "w1", annotations={name: "9001"})
        await ear.until_serving("w1")
        assert ear.wanted("w1").target.port == 9001  # type: ignore[union-attr]
        await do(kube.pods.set, "w1", annotations={name: "70000"})
        await ear.until_serving()
        assert name in ear.wanted("w1").reason

    follow(make_feed(kube), test)


def test_d8_p5_labels_that_give_role_and_group_are_read_again_on_every_change(kube: KubeServer) -> None:
    role = KubeSettings().role_label

    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", {**LABELS, role: "prefill", "set": "blue"})
        await ear.until_serving("w1")
        first = ear.wanted("w1")
        assert first.target is not None
        assert (first.target.role, first.target.group) == (Role.PREFILL, "blue")
        await do(kube.pods.set, "w1", labels={role: "decode"})
        await ear.until(lambda: ear.wanted("w1").generation != first.generation)
        second = ear.wanted("w1")
        assert second.target is not None
        assert (second.engine_id, second.target.role) == (first.engine_id, Role.DECODE)
        await do(kube.pods.set, "w1", labels={"set": "green"})
        await ear.until(lambda: ear.wanted("w1").generation != second.generation)
        third = ear.wanted("w1")
        assert third.target is not None
        assert (third.engine_id, third.target.group) == (first.engine_id, "green")
        await do(kube.pods.set, "w1", labels={"set": None})
        await ear.until_serving()
        assert ear.wanted("w1").reason == "no label set, by which engines are to be paired"

    follow(make_feed(kube, pair_by="set"), test)


def test_an_address_that_is_used_again_belongs_to_the_new_pod(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await ear.until_serving("w1")
        old = ear.wanted("w1")
        await do(kube.pods.evict, "w1")
        await ear.until_serving()
        await ear.until(lambda: ear.wanted("w1").reason == "phase Failed (Evicted)")
        await do(kube.pods.create, "w2", "10.1.0.1", LABELS)
        await ear.until_serving("w2")
        await do(kube.pods.gone, "w1")
        await ear.until(lambda: ear.pods() == ["w2"])
        new = ear.wanted("w2")
        assert new.target == old.target
        assert new.engine_id != old.engine_id

    follow(make_feed(kube), test)


def test_a_finalizer_keeps_a_pod_terminating_and_nothing_more(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await do(kube.pods.hold, "w1")
        await ear.until_serving("w1")
        await do(kube.pods.gone, "w1")
        await ear.until_serving()
        assert ear.wanted("w1").reason == "terminating"
        await do(kube.pods.release, "w1")
        await ear.until(lambda: ear.all() == [])

    follow(make_feed(kube), test)


def test_d2_expiry_inside_the_stream_after_a_restart_of_the_api_server(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await ear.until_serving("w1")
        version = ear.feed._state.version
        assert version is not None
        # History goes on past what the feed's selector shows it, and the new server's cache begins after that.
        await do(kube.pods.create, "other", "10.1.0.2", {"app": "other"})
        await do(kube.pods.gone, "other")
        await do(kube.restart)
        await do(kube.pods.gone, "w1")
        await ear.until(lambda: ear.all() == [])
        await ear.until_watching()
        # That server does answer so to the old version: seen with our own client.
        api = open_api(KubeSettings(kubeconfig=str(kube.kubeconfig)))
        async with api.watch("app=engine", version, 5) as lines:
            assert b'"code":410' in await anext(lines)

    follow(make_feed(kube), test)


def test_d2_expiry_as_http_status_on_a_continued_list(kube: KubeServer) -> None:
    answers: list[int | None] = []

    class Compacting(KubeApi):
        """History is compacted between the first page and the second, once."""

        async def list_page(self, selector: str, more: str | None) -> bytes:
            if more is not None and not answers:
                await do(kube.pods.create, "late", "10.1.0.9", LABELS)
                await do(kube.compact)
            try:
                page = await super().list_page(selector, more)
            except RequestFailed as error:
                answers.append(error.failure.status)
                raise
            return page

    for number in range(3):
        kube.pods.create(f"w{number}", f"10.1.0.{number}", LABELS)
    settings = KubeSettings(kubeconfig=str(kube.kubeconfig), page_size=1)
    plain = open_api(settings)
    api = Compacting.__new__(Compacting)
    api.__dict__.update(plain.__dict__)

    async def test(ear: Ear) -> None:
        await ear.until_serving("late", "w0", "w1", "w2")

    follow(PodFeed("pods", api, "app=engine", settings.rules(port=8000), settings), test)
    assert answers == [410]


def test_many_pods_are_listed_in_pages(kube: KubeServer) -> None:
    names = [f"w{number:02}" for number in range(23)]
    for number, name in enumerate(names):
        kube.pods.create(name, f"10.1.1.{number}", LABELS)

    async def test(ear: Ear) -> None:
        assert ear.serving() == names
        assert len(ear.events) == 1

    follow(make_feed(kube, page_size=5), test)


def test_bookmarks_move_the_version_on(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        before = ear.feed._state.version
        await do(kube.pods.create, "other", "10.1.0.2", {"app": "other"})
        await ear.until(lambda: ear.feed._state.version != before)  # shortly before the server ends the watch
        assert ear.all() == []
        assert ear.feed.status().listings == 1

    follow(make_feed(kube, watch_timeout=4), test)


def test_watches_that_the_server_ends_go_on_without_a_listing(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        await ear.until(lambda: ear.feed._state.attempts >= 4)
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await ear.until_serving("w1")
        status = ear.feed.status()
        assert (status.listings, status.error) == (1, None)

    follow(make_feed(kube, watch_timeout=1.5), test)


def test_d20_a_refusal_says_verb_resource_and_namespace_and_heals_alone(kube: KubeServer) -> None:
    kube.pods.create("w1", "10.1.0.1", LABELS)

    async def main() -> None:
        async with listening(make_feed(kube, kube_context="nobody", resync_interval=0.3)) as ear:
            await ear.until(lambda: ear.feed.status().error is not None)
            error = str(ear.feed.status().error)
            assert 'list pods in namespace "default" (403' in error
            assert "nobody" in error
            binding = {
                "metadata": {"name": "nobody-reads"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pod-reader"},
                "subjects": [{"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}],
            }
            await do(kube.pods.call, "POST", f"{RBAC}/rolebindings", binding)
            try:
                await ear.until_serving("w1")
                await ear.until(lambda: ear.feed.status().error is None)
            finally:
                await do(kube.pods.call, "DELETE", f"{RBAC}/rolebindings/nobody-reads")
            # Taken away again: what is known stays, and the reason stands.
            await ear.until(lambda: ear.feed.status().error is not None)
            assert ear.serving() == ["w1"]

    asyncio.run(main())


def test_all_namespaces_need_more_rights(kube: KubeServer) -> None:
    kube.pods.create("w1", "10.1.0.1", LABELS)

    async def main() -> None:
        async with listening(make_feed(kube, all_namespaces=True)) as ear:
            await ear.until(lambda: ear.feed.status().error is not None)
            assert "list pods in all namespaces (403" in str(ear.feed.status().error)
        async with listening(make_feed(kube, all_namespaces=True, kube_context="admin")) as ear:
            await ear.until_serving("w1")

    asyncio.run(main())


def test_a_client_certificate_is_as_good_as_a_token(kube: KubeServer) -> None:
    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await ear.until_serving("w1")

    follow(make_feed(kube, kube_context="cert"), test)


def test_a_server_that_another_authority_signed_is_not_trusted(kube: KubeServer, tmp_path: Path) -> None:
    text = kube.kubeconfig.read_text().replace("certificate-authority-data", "x-data")
    (tmp_path / "kubeconfig").write_text(text)

    async def main() -> None:
        async with listening(make_feed(kube, kubeconfig=str(tmp_path / "kubeconfig"))) as ear:
            await ear.until(lambda: ear.feed.status().error is not None)
            assert "CERTIFICATE_VERIFY_FAILED" in str(ear.feed.status().error)

    asyncio.run(main())


def test_d21_a_service_account_whose_token_rotates(kube: KubeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube.port))
    mount = kube.pods.service_token()
    settings = KubeSettings(service_account_dir=str(mount), resync_interval=0.5)
    feed = PodFeed("pods", open_api(settings), "app=engine", settings.rules(port=8000), settings)

    async def test(ear: Ear) -> None:
        await do(kube.pods.create, "w1", "10.1.0.1", LABELS)
        await ear.until_serving("w1")
        # The account is made anew: tokens of the old one are worthless, once the server's cache of them ends (10 s).
        await do(kube.pods.call, "DELETE", f"{ACCOUNT}/frontend")
        await do(kube.pods.call, "POST", ACCOUNT, {"metadata": {"name": "frontend"}})
        await ear.until(lambda: ear.feed.status().error is not None)
        assert "401" in str(ear.feed.status().error)
        assert ear.serving() == ["w1"]
        await do(kube.pods.service_token)
        await ear.until(lambda: ear.feed.status().error is None)
        await do(kube.pods.create, "w2", "10.1.0.2", LABELS)
        await ear.until_serving("w1", "w2")

    follow(feed, test)


def test_d22_the_api_server_goes_away_and_comes_back(kube: KubeServer, tmp_path: Path) -> None:
    kube.pods.create("w1", "10.1.0.1", LABELS)
    kube.pods.create("w2", "10.1.0.2", LABELS)

    async def main() -> None:
        async with Gate(kube.port) as gate:
            text = kube.kubeconfig.read_text().replace(f"127.0.0.1:{kube.port}", f"127.0.0.1:{gate.port}")
            (tmp_path / "kubeconfig").write_text(text)
            async with listening(make_feed(kube, kubeconfig=str(tmp_path / "kubeconfig"))) as ear:
                await ear.until_serving("w1", "w2")
                await ear.until_watching()
                await gate.shut()
                await ear.until(lambda: "no connection to" in str(ear.feed.status().error))
                await do(kube.pods.gone, "w1")
                await do(kube.pods.create, "w3", "10.1.0.3", LABELS)
                assert ear.serving() == ["w1", "w2"]
                await gate.open()
                await ear.until_serving("w2", "w3")
                await ear.until(lambda: ear.feed.status().error is None)

    asyncio.run(main())
