"""Asynchronous use cases. They know ports, never drivers."""
