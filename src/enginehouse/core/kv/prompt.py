"""One prompt held against all that is known: hashed once per block size, looked up once per choice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from enginehouse.core.kv import blocks
from enginehouse.core.kv.blocks import Scheme
from enginehouse.core.kv.index import Holder, KvIndex
from enginehouse.core.kv.rank import Rank
from enginehouse.core.kv.view import Policy
from enginehouse.core.routing.candidate import Candidate


class KvPrompt:
    """Routing's view of one request. Nothing is hashed before the first question."""

    __slots__ = (
        "_depths",
        "_find",
        "_index",
        "_keys",
        "_namespace",
        "_packed",
        "_schemes",
        "_token_ids",
        "now",
        "session",
        "tokens",
    )

    def __init__(
        self,
        token_ids: Sequence[int],
        namespace: str,
        session: str | None,
        now: float,
        *,
        index: KvIndex,
        schemes: Callable[[], Collection[Scheme]],
        find: Callable[[Candidate], Rank | None],
    ) -> None:
        """schemes: those of the ranks' events, as they are when asked; find: the rank that a candidate stands for."""
        self.tokens = len(token_ids)
        self.session = session
        self.now = now
        self._token_ids = token_ids
        self._namespace = namespace
        self._index = index
        self._schemes = schemes
        self._find = find
        self._packed: bytes | None = None
        self._keys: dict[Scheme, list[int]] = {}
        self._depths: list[tuple[int, Mapping[Holder, int]]] | None = None

    def again(self, now: float) -> None:
        """Another choice for the same prompt: look everything up anew."""
        self.now = now
        self._depths = None

    def held(self, candidate: Candidate) -> int:
        """Tokens at the prompt's head that the rank is believed to hold. Asked for every rank at every choice."""
        rank = self._find(candidate)
        if rank is None:
            return 0
        found = 0
        coming = self._by_expected(rank) if rank.expected.counts else 0
        if rank.counted:
            found = int(max(self._by_events(rank), coming) * rank.by_events.correction)
        if rank.policy is Policy.APPROXIMATE:
            found = max(found, int(max(self._by_sent(rank), coming) * rank.by_sent.correction))
        return self._whole(found, rank) if found else 0

    def by_events(self, rank: Rank) -> int:
        """Tokens that the rank holds by its own events."""
        return self._whole(self._by_events(rank), rank)

    def by_expected(self, rank: Rank) -> int:
        """Tokens that it holds when the requests that it has are done."""
        return self._whole(self._by_expected(rank), rank)

    def by_sent(self, rank: Rank) -> int:
        """Tokens that it likely holds by what we sent it."""
        return self._whole(self._by_sent(rank), rank)

    def _by_events(self, rank: Rank) -> int:
        if self._depths is None:
            self._depths = [(scheme.block_size, self._index.lookup(self.keys(scheme))) for scheme in self._schemes()]
        found = 0
        for size, depths in self._depths:
            deep = depths.get(rank.holder, 0) * size
            if deep > found:
                found = deep
        return found

    def _by_expected(self, rank: Rank) -> int:
        return rank.expected.depth(self.keys(rank.own), self.now) * rank.own.block_size

    def _by_sent(self, rank: Rank) -> int:
        return rank.sent.depth(self.keys(rank.own), self.now) * rank.own.block_size if len(rank.sent) else 0

    def keys(self, scheme: Scheme) -> list[int]:
        """Keys of the prompt's blocks."""
        keys = self._keys.get(scheme)
        if keys is None:
            if self._packed is None:
                self._packed = blocks.pack(self._token_ids)
            keys = self._keys[scheme] = blocks.keys(self._packed, scheme, self._namespace)
        return keys

    def _whole(self, tokens: int, rank: Rank) -> int:
        """So many in whole blocks. The last token of a prompt is computed whatever the cache holds."""
        tokens = min(tokens, self.tokens - 1)
        return tokens - tokens % rank.unit if tokens > 0 else 0
