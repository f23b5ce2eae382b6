"""How mock engines pass KV caches on among themselves: over TCP, one JSON object a line, as a stand-in for RDMA."""
