"""Ports that are not, or not usefully, an engine of ours: found out so that the operator reads what to change."""

from __future__ import annotations

from enginehouse.adapters.engines.calls import implemented
from enginehouse.adapters.engines.health import serving
from enginehouse.ports import Link

_KNOWN = (
    (
        "/sglang.api.v1.SglangService/GetServerInfo",
        "sglang.api.v1: SGLang was started with SGLANG_RUST_SERVER=1;"
        " unset it, so that --grpc-port serves sglang.runtime.v1",
    ),
    (
        "/sglang.grpc.scheduler.SglangScheduler/GetServerInfo",
        "sglang.grpc.scheduler: SGLang was started with --smg-grpc-mode; start it with --grpc-port instead",
    ),
    (
        "/trtllm.TrtllmService/GetServerInfo",
        "trtllm: TensorRT-LLM is not supported yet",
    ),
)


async def foreign_service(link: Link, *, timeout: float) -> str | None:
    """What is spoken there, and what to do about it; None where it is nothing that we know."""
    for path, text in _KNOWN:
        if await implemented(link, path, b"", timeout=timeout):
            return f"speaks {text}"
    if await serving(link, "", timeout=timeout) is not None:
        return (
            "has a health service, but none that generates: a follower node or helper process, or an engine that we do"
            " not know; select head pods and give the engine's own gRPC port"
        )
    return None
