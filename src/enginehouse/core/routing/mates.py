"""Which engines can pass a KV cache to which. What they say of it is compared once per change of the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from enginehouse.core.routing.candidate import Candidate, Pairing


def compatible(a: Pairing, b: Pairing) -> bool:
    """Whether a cache can pass between two engines that say this of themselves."""
    return (
        a.protocol == b.protocol
        and a.group == b.group
        and _agree(a.transfer_backend, b.transfer_backend)
        and _agree(a.kv_dtype, b.kv_dtype)
        and _agree(a.block_size, b.block_size)
    )


def _agree(a: str | int | None, b: str | int | None) -> bool:
    return a is None or b is None or a == b


class Mates:
    """The kinds of decode engines that fit each kind of prefill engine. A candidate that says nothing fits nobody."""

    def __init__(self, prefill: Sequence[Candidate], decode: Sequence[Candidate]) -> None:
        alike: dict[tuple[str, str | None], list[Pairing]] = {}
        for kind in _kinds(decode):
            alike.setdefault((kind.protocol, kind.group), []).append(kind)
        self._fit: dict[Pairing | None, frozenset[Pairing | None]] = {
            kind: frozenset(other for other in alike.get((kind.protocol, kind.group), ()) if compatible(kind, other))
            for kind in _kinds(prefill)
        }

    def with_mate(self, prefill: Sequence[Candidate], decode: Iterable[Candidate]) -> Sequence[Candidate]:
        """Those prefill candidates that one of these decode candidates fits."""
        there = {c.pairing for c in decode}
        fit = {kind for kind, kinds in self._fit.items() if not kinds.isdisjoint(there)}
        return [c for c in prefill if c.pairing in fit]

    def of(self, prefill: Candidate, decode: Sequence[Candidate]) -> Sequence[Candidate]:
        """Those of these decode candidates that fit the prefill candidate."""
        kinds = self._fit[prefill.pairing]
        return [c for c in decode if c.pairing in kinds]


def _kinds(candidates: Iterable[Candidate]) -> set[Pairing]:
    return {c.pairing for c in candidates if c.pairing is not None}
