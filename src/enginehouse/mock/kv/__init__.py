"""KV events of a mock engine: what its caches take in and let go, told as real engines tell it, false when told to."""
