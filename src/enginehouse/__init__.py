"""A direct frontend for LLM inference engines: OpenAI-compatible HTTP in, token ids over gRPC out."""

__version__ = "0.1.0"
