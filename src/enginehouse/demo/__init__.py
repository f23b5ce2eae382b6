"""`enginehouse demo`: mock engines and the frontend in one process; engines join and leave under traffic.

With policy kv it also shows a chat whose second turn goes to the engine that holds the first; with two pools, who
prefills and who decodes.
"""

from enginehouse.demo.show import DemoSettings, run

__all__ = ["DemoSettings", "run"]
