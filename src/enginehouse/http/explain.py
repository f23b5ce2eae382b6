"""`POST /explain`: where a request would go and what that would cost, without sending it anywhere.

Answers with numbers and the names of engines: nothing of the prompt, neither text nor token ids. Of several choices it
is the first one's.
"""

from __future__ import annotations

import msgspec
import structlog

from enginehouse.core.openai.parse import parse_either
from enginehouse.domain.errors import EnginehouseError
from enginehouse.http.completions import EdgeOptions
from enginehouse.http.errors import internal_error, respond_error
from enginehouse.http.exchange import JSON, ClientGone, Receive, Scope, Send, read_body, respond
from enginehouse.http.prompts import encode, token_requests
from enginehouse.service.generate import Generator
from enginehouse.service.models import Models

log = structlog.get_logger("enginehouse.http")


class Explain:
    """The path, as an ASGI application. Takes the body of either completion path, told by `messages` or `prompt`."""

    def __init__(self, models: Models, generator: Generator, options: EdgeOptions) -> None:
        self._models = models
        self._generator = generator
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, self._options.max_body_bytes, self._options.body_timeout)
            await respond(send, 200, await self._explain(body, scope), JSON)
        except ClientGone:
            return
        except EnginehouseError as error:
            await respond_error(send, error, [])
        except Exception:
            log.exception("explain failed by a fault of ours")
            await respond_error(send, internal_error(), [])

    async def _explain(self, body: bytes, scope: Scope) -> bytes:
        request = parse_either(body, client_priority=self._options.client_priority)
        session = self._options.session_of(scope, request)
        model = await self._models.find(request.model)
        prompts = await encode(request, model)
        first, *_ = token_requests(request, prompts, model, self._models, session)
        return msgspec.json.encode(self._generator.explain(first).explain())
