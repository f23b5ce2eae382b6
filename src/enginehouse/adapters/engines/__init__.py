"""Stock inference engines, one module per gRPC protocol, behind one port."""

from enginehouse.adapters.engines.connect import EngineConnector
from enginehouse.adapters.engines.kv_sources import KvSourceSettings
from enginehouse.adapters.engines.protocol import ProbeSettings

__all__ = ["EngineConnector", "KvSourceSettings", "ProbeSettings"]
