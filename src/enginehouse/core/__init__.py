"""Decisions: synchronous and deterministic. Time, randomness and ids are arguments."""
