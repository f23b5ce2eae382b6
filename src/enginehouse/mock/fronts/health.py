"""grpc.health.v1 for the vLLM fronts: Check and Watch over the services that they register."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from enginehouse._proto import grpc_health_pb2 as pb
from enginehouse.mock.engine import Engine
from enginehouse.mock.fronts.rpc import Context, Refused, StreamHandler, UnaryHandler

SERVICE = "grpc.health.v1.Health"


class Health:
    """Answers for the services of one engine; any other name is NOT_FOUND."""

    def __init__(self, engine: Engine, services: tuple[str, ...], unknown: str) -> None:
        self._engine = engine
        self._services = ("", *services)
        self._unknown = unknown

    def methods(self) -> Mapping[str, UnaryHandler | StreamHandler]:
        return {"Check": self.check, "Watch": self.watch}

    async def check(self, request: bytes, context: Context) -> pb.HealthCheckResponse:
        service = pb.HealthCheckRequest.FromString(request).service
        if service not in self._services:
            raise Refused(grpc.StatusCode.NOT_FOUND, self._unknown.format(service=service))
        return self._answer()

    async def watch(self, request: bytes, context: Context) -> None:
        service = pb.HealthCheckRequest.FromString(request).service
        known = service in self._services
        told = None
        while True:
            change = self._engine.next_change()  # before the look: writing takes time, too
            answer = self._answer() if known else pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
            if answer != told:
                await context.write(answer.SerializeToString())
                told = answer
            await change

    def _answer(self) -> pb.HealthCheckResponse:
        healthy = self._engine.healthy
        return pb.HealthCheckResponse(
            status=pb.HealthCheckResponse.SERVING if healthy else pb.HealthCheckResponse.NOT_SERVING
        )
