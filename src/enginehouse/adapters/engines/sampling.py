"""Sampling parameters in the terms that engines take: their defaults filled in, odd numbers brought into range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from enginehouse.domain.request import Sampling

SMALLEST_TOP_P = 1e-6
"""Stands for top_p 0 ("only the most likely token"), which engines refuse or take for "not given"."""

_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


def with_defaults(sampling: Sampling, defaults: Mapping[str, object]) -> Sampling:
    """Fill what the request leaves open from the model's own generation defaults; temperature at last with 1.

    For engines that take an absent value for their protocol's zero instead of the model's default.
    """
    found: dict[str, float] = {}
    for name in _NUMBERS:
        value = defaults.get(name)
        if getattr(sampling, name) is None and isinstance(value, int | float) and _sound(value):
            found[name] = float(value)
    if sampling.temperature is None:
        found.setdefault("temperature", 1.0)
    filled = replace(sampling, **found)  # type: ignore[arg-type]  # the names are floats all
    top_k = defaults.get("top_k")
    if filled.top_k is None and isinstance(top_k, int) and _sound(top_k):
        filled = replace(filled, top_k=top_k)
    return filled


def _sound(value: float) -> bool:
    """A number that fits every protocol's field: an engine's odd default must not spoil each request."""
    return not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31  # which infinity and NaN fail too


def top_p(value: float) -> float:
    """See SMALLEST_TOP_P."""
    return value if value > 0 else SMALLEST_TOP_P


def top_k_or_zero(value: int | None) -> int:
    """For protocols in which 0 switches it off, and -1 cannot be written."""
    return value if value is not None and value > 0 else 0


def fold_seed(seed: int, bits: int) -> int:
    """The seed as a signed number of so many bits: itself where it fits, else always the same stand-in."""
    limit = 1 << (bits - 1)
    return seed if -limit <= seed < limit else seed % (limit - 1)
