"""Mock engines for tests, demos and benchmarks: one simulator, three real gRPC fronts, faults on demand.

`run(settings)` is `enginehouse mock`; `MockEngine` embeds one in an event loop.
"""

from enginehouse.mock.server import MockEngine, run
from enginehouse.mock.settings import Faults, MockSettings

__all__ = ["Faults", "MockEngine", "MockSettings", "run"]
