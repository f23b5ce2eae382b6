"""Sans-IO protocol machines: bytes in, events out. No sockets, no clock."""
