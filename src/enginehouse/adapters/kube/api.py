"""The two requests that a pod feed makes, and what their failures mean."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from urllib.parse import quote, urlencode

from enginehouse.adapters.kube.access import Access, KubeConfigError
from enginehouse.adapters.kube.credentials import Credentials, CredentialsError
from enginehouse.adapters.kube.http import Endpoint, RequestFailed, Response, get
from enginehouse.adapters.kube.settings import KubeSettings
from enginehouse.core.watch import Failure, FailureKind
from enginehouse.core.watch.codec import read_status, refusal, shown

_ERROR_BODY = 64 * 1024


class KubeApi:
    """Pods of one API server, in one namespace or in all."""

    def __init__(self, access: Access, settings: KubeSettings, find: Callable[[], Access] | None = None) -> None:
        """find: looks for the access anew when the server accepts it no more."""
        self.source = access.source
        self.server = access.server
        self.namespace = None if settings.all_namespaces else access.namespace
        """None: all."""
        self._settings = settings
        self._credentials = Credentials(access, find)
        try:
            self._endpoint = Endpoint.parse(access.server, access.tls_server_name)
        except ValueError as error:
            raise KubeConfigError(f"{access.source}: {error}") from error

    @property
    def where(self) -> str:
        """The place, for messages."""
        return f'namespace "{self.namespace}"' if self.namespace is not None else "all namespaces"

    def reload_credentials(self) -> None:
        """Forget cached credentials, and read the kubeconfig again before the next request."""
        self._credentials.reload()

    async def list_page(self, selector: str, more: str | None) -> bytes:
        """Return one page of the pod list as it came. Raises RequestFailed."""
        query = {"labelSelector": selector, "limit": str(self._settings.page_size)}
        if more is not None:
            query["continue"] = more
        limit = self._settings.request_timeout
        try:
            async with asyncio.timeout(limit), self._get(query, f"list pods in {self.where}") as response:
                return await response.body()
        except TimeoutError:
            text = f"the API server did not finish a list of pods within {limit:g} s"
            raise RequestFailed(Failure(FailureKind.SILENT, text)) from None

    @contextlib.asynccontextmanager
    async def watch(self, selector: str, version: str, timeout: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and give its lines, of any length. Raises RequestFailed, then and while it is read."""
        query = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout),
        }
        async with (
            self._get(query, f"watch pods in {self.where}") as response,
            contextlib.aclosing(_lines(response)) as lines,
        ):
            yield lines

    @contextlib.asynccontextmanager
    async def _get(self, query: dict[str, str], doing: str) -> AsyncIterator[Response]:
        space = f"/namespaces/{quote(self.namespace, safe='')}" if self.namespace is not None else ""
        target = f"/api/v1{space}/pods?{urlencode(query, quote_via=quote, safe='')}"
        try:
            prepared = await self._credentials.prepare()
        except CredentialsError as error:
            self.reload_credentials()
            raise RequestFailed(Failure(FailureKind.CREDENTIALS, str(error))) from error
        headers = [("Accept", "application/json"), ("User-Agent", "enginehouse")]
        if prepared.authorization is not None:
            headers.append(("Authorization", prepared.authorization))
        try:
            async with get(
                self._endpoint,
                target,
                headers,
                prepared.tls,
                connect_timeout=self._settings.connect_timeout,
                head_timeout=self._settings.request_timeout,
            ) as response:
                if response.status != 200:
                    raise RequestFailed(await _refused(response, doing, self._settings.request_timeout))
                yield response
        except RequestFailed as error:
            # TLS: an authority or a certificate that has changed shows like this.
            if error.failure.kind is FailureKind.CREDENTIALS or isinstance(error.__cause__, ssl.SSLError):
                self.reload_credentials()
            raise


async def _refused(response: Response, doing: str, limit: float) -> Failure:
    body = b""
    with contextlib.suppress(RequestFailed, TimeoutError):  # the status alone says enough
        async with asyncio.timeout(limit):
            body = await response.body(_ERROR_BODY)
    status = read_status(body)
    if not status.message:
        status.message = f"HTTP {response.status} {shown(body)}"
    return refusal(status, response.status, doing, _seconds(response.headers.get("retry-after")))


def _seconds(text: str | None) -> float | None:
    # Kubernetes sends seconds; the date form of HTTP is left to our own back-off.
    return float(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 7 else None


async def _lines(response: Response) -> AsyncGenerator[bytes, None]:
    rest = bytearray()
    async for chunk in response.chunks():
        start = len(rest)  # no line end before: a line of megabytes is searched once
        rest += chunk
        while (end := rest.find(b"\n", start)) >= 0:
            line = bytes(rest[:end]).strip()
            del rest[: end + 1]
            start = 0
            if line:
                yield line
    if line := bytes(rest).strip():
        yield line
