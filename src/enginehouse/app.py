"""The composition root: everything that `serve` is made of, put together, run, and taken down in order."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import structlog
import uvloop

from enginehouse import __version__
from enginehouse.adapters.engines import EngineConnector
from enginehouse.adapters.engines_file import FileFeed
from enginehouse.adapters.fixed import FixedFeed
from enginehouse.adapters.kube import KubeConfigError, PodFeed, open_api
from enginehouse.adapters.kv_events import ZmqKvEvents
from enginehouse.adapters.link import Link
from enginehouse.adapters.logs import setup_logs
from enginehouse.adapters.metrics import Metrics
from enginehouse.adapters.tokenizer import TokenizerError, load_tokenizer
from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.core.membership.card import ModelCard
from enginehouse.core.routing.ledger import Ledger
from enginehouse.domain.engine import InvalidTarget, Role, Target
from enginehouse.http.admin import Admin
from enginehouse.http.completions import EdgeOptions
from enginehouse.http.routes import build
from enginehouse.http.server import HttpServer
from enginehouse.http.session import session_source
from enginehouse.ports import Feed, Tokenizer
from enginehouse.service.drain import Readiness, leave
from enginehouse.service.fleet import Fleet
from enginehouse.service.generate import Generator
from enginehouse.service.kv import KvFollower
from enginehouse.service.membership import Member
from enginehouse.service.models import LoadTokenizer, Models, TokenizerUnavailable
from enginehouse.settings import Settings

log = structlog.get_logger("enginehouse.app")

_START = 60.0
"""Seconds after which the log says, as a warning, what the first engines are still missing. Nothing waits for them."""


@dataclass(frozen=True)
class Frontend:
    """A running frontend."""

    port: int
    fleet: Fleet
    models: Models
    readiness: Readiness
    leave: Callable[[], asyncio.Task[None]]
    """Start leaving: in order, without cutting who can be spared."""


@asynccontextmanager
async def frontend(settings: Settings, *, feeds: Sequence[Feed] | None = None) -> AsyncIterator[Frontend]:
    """Serve until the block ends. Answers are cut at its end: leave first to spare them.

    feeds: who says which engines there are; None: what the settings name. Raises OSError when the address is taken, and
    what the settings' files and the Kubernetes configuration are refused for.
    """
    loop = asyncio.get_running_loop()
    random = Random()
    link_settings = settings.link
    if any((link_settings.ca, link_settings.cert, link_settings.key)):
        link_settings.tls_context()  # a bad file stops the start, not the first engine
    fleet = Fleet(
        EngineConnector(lambda target: Link(target, link_settings, loop=loop), settings.probe, settings.kv_sources),
        feeds if feeds is not None else open_feeds(settings),
        settings.membership,
        model=settings.fleet.model,
        topology=settings.topology,
        rng=random,
    )
    ledger = Ledger()
    knowledge = Knowledge(settings.kv) if settings.routing.policy == "kv" else None
    kv_events = ZmqKvEvents(settings.kv_events)
    kv = KvFollower(knowledge, kv_events, fleet.engine) if knowledge is not None else None
    if kv is not None:
        kv.follow(fleet.runtime_configs)
    generator = Generator(
        fleet,
        ledger,
        settings.requests,
        settings.routing,
        rng=random,
        knowledge=knowledge,
        handover=settings.handover,
    )
    models = Models(
        fleet,
        tokenizer_finder(settings.fleet.tokenizer, settings.fleet.chat_template),
        name=settings.fleet.model,
        patience=settings.requests.hold_timeout,
        formats=settings.formats,
    )
    readiness = Readiness(fleet, models, generator.lack)
    kv_view = kv.view if kv is not None else None
    metrics = Metrics(fleet, ready=lambda: not readiness.reasons(), kv=kv_view, pairs=generator.pairs)
    admin = Admin(fleet, models, readiness, ledger, settings.routing.policy, metrics.render, kv_view, generator.pools)
    edge = EdgeOptions(
        settings.http.max_body_bytes,
        settings.http.body_timeout,
        session_source(settings.routing.affinity, settings.http.affinity_header),
        settings.http.debug_headers,
        settings.formats.reasoning_field,
        settings.http.client_priority,
    )
    server = HttpServer(build(models, generator, metrics.requests, admin, edge), settings.http)

    await server.start()
    log.info("listening", host=settings.http.host, port=server.port, version=__version__)
    leaving: list[asyncio.Task[None]] = []

    def start_leaving() -> asyncio.Task[None]:
        if not leaving:
            leaving.append(
                loop.create_task(
                    leave(
                        readiness,
                        discourage=server.discourage,
                        grace=settings.http.shutdown_grace,
                        stop_accepting=server.stop_accepting,
                        close=server.close,
                        timeout=settings.http.shutdown_timeout,
                    ),
                    name="leave",
                )
            )
        return leaving[0]

    async with asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None] | asyncio.Task[tuple[str, ...]]] = [
            tasks.create_task(fleet.run(), name="fleet"),
            tasks.create_task(models.run(), name="models"),
            tasks.create_task(fleet.ready(_START), name="ready"),
        ]
        try:
            yield Frontend(server.port, fleet, models, readiness, start_leaving)
        finally:
            for task in leaving:
                task.cancel()
            readiness.leaving = True
            await server.close(0)
            await generator.close()
            await fleet.close(0)
            if kv is not None:
                kv.close()
            kv_events.close()
            for duty in running:
                duty.cancel()


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the second one cuts what the first one waits for. Returns the exit status."""
    setup_logs(settings.logs)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection each: the usual 1,024 are soon used up
    try:
        return uvloop.run(_serve(settings))
    except (OSError, InvalidTarget, KubeConfigError) as error:
        print(f"enginehouse: {error}", file=sys.stderr)
        return 1


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    async with frontend(settings) as running:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, number)
        gc.collect()
        gc.freeze()  # what was made so far lives as long as we do: no collection has to walk it again
        await signals.get()
        left = running.leave()
        again = loop.create_task(signals.get(), name="second-signal")
        waiting: set[asyncio.Task[None] | asyncio.Task[int]] = {left, again}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
    return 0


def open_feeds(settings: Settings) -> list[Feed]:
    """The feeds that the settings name. Raises KubeConfigError, InvalidTarget."""
    sources = settings.sources
    feeds: list[Feed] = []
    if sources.engine:
        feeds.append(FixedFeed([Target.parse(text) for text in sources.engine]))
    if sources.engines_file is not None:
        feeds.append(FileFeed(sources.engines_file, settings.engines_file))
    if sources.pods is not None or sources.prefill_pods is not None:
        api = open_api(settings.kube)
        split = sources.prefill_pods is not None
        for name, selector, port, role in (
            ("pods", sources.pods, sources.pod_port, Role.DECODE if split else None),
            ("prefill-pods", sources.prefill_pods, sources.prefill_pod_port, Role.PREFILL),
        ):
            if selector is not None:
                rules = settings.kube.rules(port=port, role=role)
                feeds.append(PodFeed(name, api, selector, rules, settings.kube))
    return feeds


def tokenizer_finder(named: str | None, chat_template: Path | None = None) -> LoadTokenizer:
    """How to come by a tokenizer: the one that the operator named, else the engine's own, else the path it names.

    chat_template: file with one to be used instead of the model's own, whichever it is.
    """

    async def find(card: ModelCard, member: Member | None) -> Tokenizer:
        if named is not None:
            return await _load(named, f"--tokenizer {named}", chat_template)
        files = await member.engine.tokenizer_files() if member is not None else {}
        if files:
            return await _load(None, "the engine's own", chat_template, files)
        tried = []
        for path in dict.fromkeys(path for path in (card.tokenizer_path, card.model_path) if path):
            try:
                return await _load(path, path, chat_template)
            except TokenizerUnavailable as error:
                tried.append(str(error))
        raise TokenizerUnavailable(
            "the engine hands none out"
            + (f"; {'; '.join(tried)}" if tried else " and names no path")
            + ". Give one with --tokenizer"
        )

    return find


async def _load(
    source: str | None, what: str, chat_template: Path | None, files: Mapping[str, bytes] | None = None
) -> Tokenizer:
    try:
        return await asyncio.to_thread(load_tokenizer, source, files, None, chat_template)
    except TokenizerError as error:
        raise TokenizerUnavailable(f"{what}: {error}") from error
