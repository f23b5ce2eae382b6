"""What every end-to-end test starts with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleets import FileFleet, Fleet, PodFleet
from tests.e2e.kube import Cluster, api_server
from tests.e2e.support import Engine, Front, Stream
from tests.support import Start

MakeEngine = Callable[..., Engine]
MakeFront = Callable[..., Front]


@pytest.fixture(autouse=True)
def streams_end() -> Iterator[None]:
    """What a test that fails leaves open must not fail another."""
    yield
    while Stream.opened:
        Stream.opened.pop().close()


@pytest.fixture
def engine(start: Start, tmp_path: Path) -> MakeEngine:
    """engine("a", tokens_per_second=10, …) -> Engine, not running yet."""

    def make(name: str, **options: Any) -> Engine:
        return Engine(start, tmp_path, name, **{"tokens_per_second": 200, **options})

    return make


@pytest.fixture
def front(start: Start) -> MakeFront:
    """front("--engine", url, …) -> Front, ready."""

    def make(*options: object, **more: Any) -> Front:
        return Front(start, *options, **more)

    return make


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The API server that all tests share."""
    with api_server(tmp_path_factory.mktemp("kube")) as running:
        yield running


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path, engine: MakeEngine, front: MakeFront) -> Fleet:
    """A fleet of the way that `fleets.each_way` names."""
    kind, _, how = request.param.partition(":")
    if kind == "file":
        return FileFleet(tmp_path, engine, front)
    return PodFleet(request.getfixturevalue("cluster"), engine, front, how)


@pytest.fixture
def pods(cluster: Cluster, engine: MakeEngine, front: MakeFront) -> PodFleet:
    """A fleet of pods that terminate when they leave."""
    return PodFleet(cluster, engine, front)
