"""Decides where a request goes now: the fleet's engines that can do what it needs, and the policy's choice of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from enginehouse.core.membership.roles import Topology
from enginehouse.core.routing.candidate import Candidate, PlainPrompt, Prompt
from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.pairs import Busy, NoPrefill, PairRouter, PoolLack, works_alone
from enginehouse.core.routing.policy import AllExcluded, AllFull, Router, RoutingSettings
from enginehouse.domain.engine import Ability
from enginehouse.domain.request import Sampling
from enginehouse.service.able import EMBEDS, Unable, unable
from enginehouse.service.fleet import Fleet
from enginehouse.service.pools import Pool, Pools
from enginehouse.service.request import Choice, TokenRequest
from enginehouse.service.waiting import refusal

_LONG = 1 << 30
"""Tokens; too many for any engine to be spared the hand-over."""


@dataclass(frozen=True, slots=True)
class Sought:
    """A request as engines are chosen for it."""

    request: TokenRequest
    needs: frozenset[Ability]
    """Those of its kind too."""
    prompt: Prompt | None
    """None: the policy asks nothing of it."""

    @property
    def shown(self) -> Prompt:
        """For what asks whatever the policy."""
        return self.prompt or PlainPrompt(len(self.request.token_ids), self.request.session)


class Chooser:
    """One for all requests: policies have turns."""

    def __init__(
        self, fleet: Fleet, pools: Pools, routing: RoutingSettings, handover: HandoverSettings, rng: Random
    ) -> None:
        self._fleet = fleet
        self._pools = pools
        self._router = Router(routing, rng)
        self._pairs = PairRouter(routing, handover, rng)

    def choose(
        self, sought: Sought, excluded: Collection[tuple[str, int]], *, explain: bool, aside: bool = False
    ) -> Choice:
        """aside: only looked at; it takes nobody's turn.

        Raises AllExcluded, AllFull, NoPrefill, Busy, and Unable where waiting is not worth it.
        """
        serving, needs = self._able(self._pools.serving, sought), sought.needs
        if self._fleet.topology is not Topology.DISAGGREGATED or needs is EMBEDS:
            router = self._router.aside() if aside else self._router
            return router.choose(serving, excluded, sought.prompt, explain=explain)
        pairs = self._pairs.aside() if aside else self._pairs
        if Ability.PROMPT_LOGPROBS in needs:
            return pairs.whole_prompt(serving, sought.shown, excluded, explain=explain)
        prefill = self._able(self._pools.prefill, sought)
        return pairs.choose(prefill, serving, sought.shown, excluded, explain=explain)

    def left(self, sought: Sought, excluded: Collection[tuple[str, int]]) -> bool:
        """Whether there are engines for the request without these; room at them may come."""
        try:
            self.choose(sought, excluded, explain=False, aside=True)
        except (AllExcluded, AllFull, NoPrefill, Unable):
            return False
        except Busy:
            pass
        return True

    def lack(self) -> str | None:
        """Why requests with long prompts would find no engines now; None: they would, though perhaps not at once."""
        long = Sought(TokenRequest(range(_LONG), 1, Sampling()), frozenset(), None)
        try:
            self.choose(long, (), explain=False, aside=True)
        except (AllExcluded, NoPrefill) as why:
            return refusal(why).message
        except (AllFull, Busy):
            pass
        return None

    def pools_lack(self) -> tuple[PoolLack | None, bool]:
        """What is wrong with the prefill pool, and whether decode engines can do without."""
        prefill, serving = self._pools.prefill.now(), self._pools.serving.now()
        return self._pairs.lack(prefill, serving), any(map(works_alone, serving))

    def _able(self, pool: Pool, sought: Sought) -> tuple[Candidate, ...]:
        """Those of a pool that can do what a request needs. Raises Unable where there are only others."""
        found = pool.able(sought.needs)
        if not found and pool.members:
            raise unable(sought.needs, pool.members, sought.request.params)
        return found
