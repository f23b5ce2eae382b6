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
from enginehouse.domain.engine import Ability, Role
from enginehouse.domain.errors import ModelNotFound
from enginehouse.domain.request import Sampling
from enginehouse.service.able import EMBEDS, Needs, Unable, has_adapter, unable, unknown_model
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
    needs: Needs
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

        Raises AllExcluded, AllFull, NoPrefill, Busy, and where waiting is not worth it Unable and ModelNotFound.
        """
        serving, needs = self._able(self._pools.serving, sought), sought.needs
        if self._fleet.topology is not Topology.DISAGGREGATED or needs.abilities is EMBEDS:
            router = self._router.aside() if aside else self._router
            return router.choose(serving, excluded, sought.prompt, explain=explain)
        pairs = self._pairs.aside() if aside else self._pairs
        if Ability.PROMPT_LOGPROBS in needs.abilities:
            return pairs.whole_prompt(serving, sought.shown, excluded, explain=explain)
        prefill = self._able(self._pools.prefill, sought)
        return pairs.choose(prefill, serving, sought.shown, excluded, explain=explain)

    def left(self, sought: Sought, excluded: Collection[tuple[str, int]]) -> bool:
        """Whether there are engines for the request without these; room at them may come."""
        try:
            self.choose(sought, excluded, explain=False, aside=True)
        except (AllExcluded, AllFull, NoPrefill, Unable, ModelNotFound):
            return False
        except Busy:
            pass
        return True

    def lack(self) -> str | None:
        """Why requests with long prompts would find no engines now; None: they would, though perhaps not at once."""
        long = Sought(TokenRequest(range(_LONG), 1, Sampling()), Needs(frozenset()), None)
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
        """Those of a pool that can do what a request needs. Raises Unable or ModelNotFound where there are only others.

        An engine that may not take requests just now may be back in a moment, and has its adapters still: there are
        none then, as if there were no other engines.
        """
        needs = sought.needs
        found = pool.able(needs)
        if found or not pool.members:
            return found
        members = [member for member in pool.members if has_adapter(member, needs)]
        if members:
            raise unable(needs.abilities, members, sought.request.params)
        assert needs.lora is not None
        if self._is_away(needs.lora, prefill=pool is self._pools.prefill):
            return ()
        card = self._fleet.card.get()
        adapters = {name for member in pool.members for name in member.info.loras}
        raise unknown_model(needs.lora, card.model if card is not None else pool.members[0].info.model, adapters)

    def _is_away(self, lora: str, *, prefill: bool) -> bool:
        """Whether an engine for this work has the adapter, though it may not serve now."""
        return any(
            lora in config.loras and (config.role is Role.PREFILL) is prefill
            for config in self._fleet.runtime_configs.get()
        )
