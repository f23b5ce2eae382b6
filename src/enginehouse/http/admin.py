"""What operators and probes ask: models, live, ready, metrics, the fleet. All is known already; nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from enginehouse.core.kv.view import KvView
from enginehouse.core.membership.card import ModelCard
from enginehouse.core.openai.answers import ModelEntry, error_body, model_body, models_list
from enginehouse.core.openai.refusals import printable
from enginehouse.core.routing.ledger import Ledger
from enginehouse.domain.errors import ModelNotFound
from enginehouse.http import kv_page, pools_page
from enginehouse.http.loads import Loads, by_engine
from enginehouse.service.drain import Readiness
from enginehouse.service.fleet import Fleet
from enginehouse.service.membership import EngineView, FeedView
from enginehouse.service.models import Models, ServedModel
from enginehouse.service.pools_view import PoolsView

JSON = "application/json"
RenderMetrics = Callable[[], tuple[bytes, str]]
"""Body and content type of `/metrics`."""


class Admin:
    """The handlers."""

    def __init__(
        self,
        fleet: Fleet,
        models: Models,
        readiness: Readiness,
        ledger: Ledger,
        policy: str,
        metrics: RenderMetrics,
        kv: Callable[[], KvView] | None,
        pools: Callable[[], PoolsView | None],
    ) -> None:
        """kv: what is known of KV caches, where the policy asks for it; pools: the generator's, if any."""
        self._fleet = fleet
        self._models = models
        self._readiness = readiness
        self._ledger = ledger
        self._policy = policy
        self._metrics = metrics
        self._kv = kv
        self._pools = pools

    async def models(self, request: Request) -> Response:
        return Response(models_list(self._entries()), media_type=JSON)

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        for entry in self._entries():
            if entry.name == name:
                return Response(model_body(entry), media_type=JSON)
        error = ModelNotFound(f"The model {printable(name)!r} does not exist.", param="model")
        return Response(error_body(error), error.status, media_type=JSON)

    async def live(self, request: Request) -> Response:
        """The process answers. Says nothing of engines: restarting us would bring none."""
        return Response(b"ok\n", media_type="text/plain")

    async def ready(self, request: Request) -> Response:
        reasons = self._readiness.reasons()
        body = msgspec.json.encode({"ready": not reasons, "reasons": reasons})
        return Response(body, 503 if reasons else 200, media_type=JSON)

    async def health(self, request: Request) -> Response:
        """Ready or not, with counts: for people and load balancers that know one path."""
        reasons = self._readiness.reasons()
        view = self._fleet.view()
        body = msgspec.json.encode(
            {
                "status": "unavailable" if reasons else "ok",
                "reasons": reasons,
                "model": view.card.model if view.card else None,
                "engines": {state.value: count for state, count in view.states.items() if count},
            }
        )
        return Response(body, 503 if reasons else 200, media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        body, content_type = self._metrics()
        return Response(body, headers={"content-type": content_type})

    async def engines(self, request: Request) -> Response:
        """Every engine and every matched pod: what it is, why it does not serve, what comes next."""
        view = self._fleet.view()
        card, reasons = view.card, self._readiness.reasons()
        kv = self._kv() if self._kv is not None else None
        pools = self._pools()
        loads = by_engine(self._ledger)
        body = msgspec.json.encode(
            {
                "ready": not reasons,
                "reasons": reasons,
                "model": None if card is None else _model(card, self._models.current),
                "topology": {"name": view.topology, "why": view.topology_reason},
                "policy": self._policy,
                # A request on two engines is charged to both; the one that prefills is not asked for its answer.
                "requests_in_flight": self._ledger.in_flight - pools_page.handovers(view.engines, loads),
                "pools": None if pools is None else pools_page.of_pools(pools, view.engines, loads),
                "kv_index": None if kv is None else kv_page.of_index(kv),
                "engines": [_engine(engine, loads, kv, pools) for engine in view.engines],
                "feeds": [_feed(feed) for feed in view.feeds],
            }
        )
        return Response(body, media_type=JSON)

    def _entries(self) -> Iterable[ModelEntry]:
        current = self._models.current
        if current is None:
            return ()
        card = current.card
        names = [
            ModelEntry(name, current.created, card.context_length, None if name == card.model else card.model)
            for name in (card.model, *card.aliases)
        ]
        adapters = [
            ModelEntry(name, current.created, card.context_length, card.model, card.model)
            for name in self._models.adapters
        ]
        return [*names, *adapters]


def _model(card: ModelCard, served: ServedModel | None) -> dict[str, Any]:
    """What engines report, but for the parsers: those that are in force, and by whose word.

    Null while there is no tokenizer.
    """
    selected = None if served is None else served.selected
    return {
        **msgspec.to_builtins(card),
        "tool_parser": None if selected is None else msgspec.to_builtins(selected.tools),
        "reasoning_parser": None if selected is None else msgspec.to_builtins(selected.reasoning),
    }


def _engine(engine: EngineView, loads: Loads, kv: KvView | None, pools: PoolsView | None) -> dict[str, Any]:
    info = engine.info
    return {
        "id": engine.engine_id,
        "name": engine.name,
        "incarnation": engine.incarnation,
        "state": engine.state.value,
        "reason": engine.reason or None,
        "state_seconds": round(engine.state_seconds, 3),
        "next_try_seconds": _rounded(engine.next_try),
        "kept_for_seconds": _rounded(engine.kept_for),
        "drain_left_seconds": _rounded(engine.drain_left),
        "streams": engine.streams,
        "load": [
            {"rank": rank, "requests": load.requests, "prompt_tokens": load.tokens}
            for rank, load in loads.get((engine.engine_id, engine.incarnation), ())
        ],
        "url": engine.url,
        "role": engine.role,
        **({} if pools is None else pools_page.of_engine(pools, engine, loads)),
        "group": engine.group,
        "meets_at": None if engine.meeting_point is None else _authority(*engine.meeting_point),
        "feeds": engine.feeds,
        "pod": None if engine.pod is None else msgspec.to_builtins(engine.pod),
        "protocol": None if info is None else info.protocol,
        "model": None if info is None else info.model,
        "context_length": None if info is None else info.context_length,
        "block_size": None if info is None else info.block_size,
        "transfer_backend": None if info is None else info.transfer_backend,
        "kv_dtype": None if info is None else info.kv_dtype,
        "ranks": None if info is None else info.ranks,
        "instance": None if info is None else info.instance_id,
        "version": None if info is None else info.version,
        "abilities": None if info is None else sorted(info.abilities),
        "loras": None if info is None else info.loras,
        "kv": None if kv is None else kv_page.of_engine(kv, engine.engine_id, engine.incarnation),
    }


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _feed(feed: FeedView) -> dict[str, Any]:
    status = feed.status
    return {
        "name": status.feed,
        "kind": status.kind,
        "synced": status.synced,
        "state": status.state,
        "age_seconds": _rounded(feed.age),
        "listings": status.listings,
        "error": status.error,
        "next_try_seconds": _rounded(feed.next_try),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
