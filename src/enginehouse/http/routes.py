"""Every path that the frontend answers on."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route

from enginehouse.http.admin import Admin
from enginehouse.http.completions import CHAT, COMPLETION, EdgeLimits, Endpoint
from enginehouse.http.errors import handlers
from enginehouse.ports import Meters
from enginehouse.service.generate import Generator
from enginehouse.service.models import Models


def build(models: Models, generator: Generator, meters: Meters, admin: Admin, limits: EdgeLimits) -> Starlette:
    """The ASGI application."""
    chat = Endpoint(CHAT, models, generator, meters, limits)
    completion = Endpoint(COMPLETION, models, generator, meters, limits)
    app = Starlette(
        routes=[
            Route(CHAT.path, chat, methods=["POST"]),
            Route(COMPLETION.path, completion, methods=["POST"]),
            Route("/v1/models", admin.models),
            Route("/v1/models/{name:path}", admin.model),
            Route("/livez", admin.live),
            Route("/readyz", admin.ready),
            Route("/health", admin.health),
            Route("/metrics", admin.metrics),
            Route("/engines", admin.engines),
        ],
        exception_handlers=handlers(meters),
    )
    app.router.redirect_slashes = False
    return app
