"""Opens engines: connects, finds the protocol, makes sure that the engine generates and is well, reads what it is."""

from __future__ import annotations

from collections.abc import Callable

from enginehouse.adapters.engines.calls import implemented
from enginehouse.adapters.engines.engine import Engine
from enginehouse.adapters.engines.failures import probe_failed
from enginehouse.adapters.engines.kv_sources import KvSourceSettings
from enginehouse.adapters.engines.protocol import EngineProtocol, ProbeSettings
from enginehouse.adapters.engines.refusals import foreign_service
from enginehouse.adapters.engines.sglang import SglangProtocol
from enginehouse.adapters.engines.vllm import VllmProtocol
from enginehouse.adapters.engines.vllm_native import VllmNativeProtocol
from enginehouse.domain.engine import Target
from enginehouse.domain.errors import ProbeFailed
from enginehouse.domain.link import LinkError
from enginehouse.ports import Link

_PROTOCOLS: tuple[type[EngineProtocol], ...] = (SglangProtocol, VllmProtocol, VllmNativeProtocol)


class EngineConnector:
    """Implements ports.Engines. open_link makes the link to a target; it is closed again unless probing succeeds."""

    def __init__(
        self,
        open_link: Callable[[Target], Link],
        settings: ProbeSettings | None = None,
        kv_sources: KvSourceSettings | None = None,
    ) -> None:
        self._open_link = open_link
        self._settings = settings or ProbeSettings()
        self._kv_sources = kv_sources or KvSourceSettings()

    async def probe(self, target: Target) -> Engine:
        link = self._open_link(target)
        try:
            return await self._probe(link, target)
        except BaseException:  # cancelled too: nothing may stay open
            await link.close()
            raise

    async def _probe(self, link: Link, target: Target) -> Engine:
        timeout = self._settings.call_timeout
        asked = "the first question"
        try:
            protocol = await self._find(link, target)
            asked = f"{protocol.service} (health)"
            await protocol.health()
            asked = f"{protocol.service} (information)"
            info = await protocol.describe()
            asked = protocol.generate_path
            if not await implemented(link, protocol.generate_path, protocol.generate_canary, timeout=timeout):
                raise ProbeFailed(
                    f"has {protocol.service}, but no Generate: it takes no requests (a follower node?)", permanent=True
                )
        except LinkError as error:
            raise probe_failed(error, asked, timeout) from error
        return Engine(link, target, info, protocol, self._settings, self._kv_sources)

    async def _find(self, link: Link, target: Target) -> EngineProtocol:
        """The protocol that is spoken there; where one is demanded, that one or none."""
        wanted = [kind for kind in _PROTOCOLS if target.protocol in (None, kind.name)]
        for kind in wanted:
            protocol = kind(link, target, self._settings)
            if await protocol.recognise():
                return protocol
        tried = ", ".join(kind.service for kind in wanted)
        for kind in _PROTOCOLS:
            if kind not in wanted and await kind(link, target, self._settings).recognise():
                raise ProbeFailed(
                    f"speaks {kind.service}, not {tried} as protocol={target.protocol} demands;"
                    f" leave protocol out, or say protocol={kind.name}",
                    permanent=True,
                )
        known = await foreign_service(link, timeout=self._settings.call_timeout)
        if known is not None:
            raise ProbeFailed(known, permanent=True)
        raise ProbeFailed(f"speaks gRPC, but no protocol that we know; tried {tried}", permanent=True)
