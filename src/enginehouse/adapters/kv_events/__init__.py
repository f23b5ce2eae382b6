"""KV-cache events of engines over ZMQ: live batches and replays, behind `ports.KvEvents`."""

from enginehouse.adapters.kv_events.events import ZmqKvEvents
from enginehouse.adapters.kv_events.settings import KvEventSettings

__all__ = ["KvEventSettings", "ZmqKvEvents"]
