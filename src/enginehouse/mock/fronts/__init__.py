"""The three gRPC contracts over one mock engine; each file knows one, none knows another."""
