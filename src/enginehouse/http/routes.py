"""Every path that the frontend answers on."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route

from enginehouse.http.admin import Admin
from enginehouse.http.completions import EdgeOptions, Endpoint
from enginehouse.http.embeddings import embeddings
from enginehouse.http.errors import handlers
from enginehouse.http.explain import Explain
from enginehouse.http.messages import MESSAGES, count_tokens
from enginehouse.http.openapi import openapi
from enginehouse.http.responses import RESPONSES
from enginehouse.http.shapes import chat_api, completion_api
from enginehouse.http.tokenize import detokenize, tokenize
from enginehouse.ports import Meters
from enginehouse.service.generate import Generator
from enginehouse.service.models import Models


def build(models: Models, generator: Generator, meters: Meters, admin: Admin, options: EdgeOptions) -> Starlette:
    """The ASGI application."""
    chat = chat_api(options.reasoning_field, client_priority=options.client_priority)
    completion = completion_api(client_priority=options.client_priority)
    app = Starlette(
        routes=[
            Route(chat.path, Endpoint(chat, models, generator, meters, options), methods=["POST"]),
            Route(completion.path, Endpoint(completion, models, generator, meters, options), methods=["POST"]),
            Route(RESPONSES.path, Endpoint(RESPONSES, models, generator, meters, options), methods=["POST"]),
            Route(MESSAGES.path, Endpoint(MESSAGES, models, generator, meters, options), methods=["POST"]),
            *(
                Route(question.path, question, methods=["POST"])
                for question in (
                    count_tokens(models, meters, options),
                    embeddings(models, generator, meters, options),
                    tokenize(models, meters, options),
                    detokenize(models, meters, options),
                )
            ),
            Route("/v1/models", admin.models),
            Route("/v1/models/{name:path}", admin.model),
            Route("/openapi.json", openapi(options.reasoning_field, options.client_priority)),
            Route("/livez", admin.live),
            Route("/readyz", admin.ready),
            Route("/health", admin.health),
            Route("/metrics", admin.metrics),
            Route("/engines", admin.engines),
            Route("/explain", Explain(models, generator, options), methods=["POST"]),
        ],
        exception_handlers=handlers(meters),
    )
    app.router.redirect_slashes = False
    return app
