"""Owns the count of streams per incarnation, and who must be told when the last one ends or when they are cut."""

from __future__ import annotations

from collections.abc import Callable

Key = tuple[str, int]
"""Engine id and incarnation."""
_Told = Callable[[], None] | None


class Holds:
    """Streams in flight. `idle` is called once for each draining incarnation, as soon as it has no stream."""

    def __init__(self, idle: Callable[[Key], None]) -> None:
        self._idle = idle
        self._held: dict[Key, dict[object, tuple[_Told, _Told]]] = {}
        self._draining: set[Key] = set()

    def take(self, key: Key, cut: _Told = None, forsake: _Told = None) -> Callable[[], None]:
        """Count one stream; the answer ends it, and may be called any number of times.

        cut: ends the stream when the drain deadline has passed; forsake: told of each check that the engine fails.
        """
        stream = object()
        self._held.setdefault(key, {})[stream] = cut, forsake

        def release() -> None:
            held = self._held.get(key)
            if held is None or held.pop(stream, self) is self:
                return
            if not held:
                del self._held[key]
                self._tell_idle(key)

        return release

    def count(self, key: Key) -> int:
        """Streams in flight on one incarnation."""
        return len(self._held.get(key, ()))

    @property
    def total(self) -> int:
        """Streams in flight on all."""
        return sum(map(len, self._held.values()))

    def drain(self, key: Key) -> None:
        """Tell when this incarnation has no stream: at once, or after its last."""
        self._draining.add(key)
        if key not in self._held:
            self._tell_idle(key)

    def cut(self, key: Key) -> int:
        """End the streams of one incarnation; return how many there were."""
        held = list(self._held.get(key, {}).values())
        for cut, _ in held:
            if cut is not None:
                cut()
        return len(held)

    def forsake(self, key: Key) -> None:
        """Tell the streams of one incarnation that it failed a check."""
        for _, forsake in list(self._held.get(key, {}).values()):
            if forsake is not None:
                forsake()

    def forget(self, key: Key) -> None:
        """The incarnation is gone, whatever still holds it."""
        self._draining.discard(key)
        self._held.pop(key, None)

    def _tell_idle(self, key: Key) -> None:
        if key in self._draining:
            self._draining.discard(key)
            self._idle(key)
