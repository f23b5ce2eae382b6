"""The link: HTTP/2 and gRPC to one engine over asyncio, around the machine in `wire.grpc_h2`."""

from enginehouse.adapters.link.link import Link
from enginehouse.adapters.link.settings import LinkSettings

__all__ = ["Link", "LinkSettings"]
