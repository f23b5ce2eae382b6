"""Which engine takes a request: filter, score, pick over an immutable snapshot."""
