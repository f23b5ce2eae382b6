"""The common health service, grpc.health.v1, which vLLM's servers have."""

from __future__ import annotations

from enginehouse._proto import grpc_health_pb2 as pb
from enginehouse.adapters.engines.calls import ask
from enginehouse.domain.errors import ProbeFailed
from enginehouse.domain.link import GrpcStatus, LinkError
from enginehouse.ports import Link

PATH = "/grpc.health.v1.Health/Check"
_UNKNOWN = (GrpcStatus.NOT_FOUND, GrpcStatus.UNIMPLEMENTED)


async def serving(link: Link, service: str, *, timeout: float) -> bool | None:
    """Is it serving? None: it knows no such service, or has no health service at all."""
    try:
        answer = await ask(link, PATH, pb.HealthCheckRequest(service=service), pb.HealthCheckResponse, timeout=timeout)
    except LinkError as error:
        if error.status in _UNKNOWN:
            return None
        raise
    if answer.status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
        return None
    return answer.status == pb.HealthCheckResponse.SERVING


async def require_serving(link: Link, service: str, *, timeout: float) -> bool:
    """Raises ProbeFailed unless it is serving. False: there is no such service to ask."""
    found = await serving(link, service, timeout=timeout)
    if found is False:
        raise ProbeFailed(f"not healthy yet (grpc.health.v1 says NOT_SERVING for {service})")
    return found is not None
