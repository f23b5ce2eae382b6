"""Any two pools, any load: the choice against a plain reading of the rules."""

from __future__ import annotations

from random import Random
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.routing.candidate import Candidate, Load, Pairing
from enginehouse.core.routing.handover_settings import HandoverSettings, PrefillMissing
from enginehouse.core.routing.mates import compatible
from enginehouse.core.routing.pairs import Alone, Busy, NoPrefill, PairDecision, PairRouter
from enginehouse.core.routing.policy import AllExcluded, AllFull, PolicyName, RoutingSettings
from enginehouse.domain.engine import ProtocolName
from tests.unit.core.routing.fakes import FakePrompt

KINDS = st.builds(
    Pairing,
    st.sampled_from([ProtocolName.VLLM, ProtocolName.SGLANG]),
    st.sampled_from(["nixl", "mooncake", None]),
    st.none(),
    st.sampled_from([16, None]),
    st.sampled_from(["a", "b", None]),
)


@st.composite
def pool(draw: st.DrawFn, letter: str) -> tuple[Candidate, ...]:
    made = []
    for n in range(draw(st.integers(0, 4))):
        load = Load()
        load.requests = draw(st.integers(0, 3))
        made.append(Candidate(f"{letter}{n}", 1, f"{letter}{n}", None, load, n, pairing=draw(KINDS)))
    return tuple(made)


@given(
    prefill=pool("p"),
    decode=pool("d"),
    excluded=st.sets(st.tuples(st.sampled_from(["p0", "p1", "d0", "d1"]), st.integers(1, 2))),
    policy=st.sampled_from(get_args(PolicyName)),
    missing=st.sampled_from(get_args(PrefillMissing)),
    limit=st.integers(0, 3),
    bound=st.integers(0, 3),
    least=st.integers(0, 100),
    tokens=st.integers(1, 200),
    held=st.dictionaries(st.sampled_from(["d0", "d1", "d2", "p0"]), st.integers(0, 100)),
    session=st.sampled_from([None, "s"]),
    explain=st.booleans(),
)
def test_p5_p6_the_choice_keeps_every_rule(
    prefill: tuple[Candidate, ...],
    decode: tuple[Candidate, ...],
    excluded: set[tuple[str, int]],
    policy: PolicyName,
    missing: PrefillMissing,
    limit: int,
    bound: int,
    least: int,
    tokens: int,
    held: dict[str, int],
    session: str | None,
    explain: bool,
) -> None:
    def tried(c: Candidate) -> bool:
        return (c.engine_id, c.incarnation) in excluded

    def room(c: Candidate) -> bool:
        return not limit or c.load.requests < limit

    def spare(c: Candidate) -> bool:
        return not bound or c.load.requests < bound

    def vllm(c: Candidate) -> bool:
        return c.pairing is not None and c.pairing.protocol == ProtocolName.VLLM

    def fit(p: Candidate, d: Candidate) -> bool:
        return p.pairing is not None and d.pairing is not None and compatible(p.pairing, d.pairing)

    held = {name: min(count, tokens - 1) for name, count in held.items()}
    prompt = FakePrompt(tokens, held, session)
    there = [c for c in decode if not tried(c)]
    free = [c for c in there if room(c)]
    little = [c for c in free if vllm(c) and tokens - held.get(c.engine_id, 0) < least]
    couples = [(p, d) for p in prefill for d in there if not tried(p) and fit(p, d)]
    roomy = [(p, d) for p, d in couples if room(p) and room(d)]
    ready = [(p, d) for p, d in roomy if spare(p)]

    router = PairRouter(
        RoutingSettings(policy=policy, max_requests_per_engine=limit, affinity="header"),
        HandoverSettings(prefill_missing=missing, max_handovers_per_prefill=bound, prefill_min_tokens=least),
        Random(1),
    )
    lack = None
    try:
        made = router.choose(prefill, decode, prompt, excluded, explain=explain)
    except AllExcluded:
        assert not there
    except AllFull:
        assert there
        assert not free or (couples and not roomy) or (not couples and missing == "decode" and any(map(vllm, there)))
        assert not [c for c in free if vllm(c)] or couples
        assert not little
    except Busy:
        assert roomy
        assert not ready
        assert not little
    except NoPrefill as no:
        assert free
        assert not couples
        assert not little
        assert missing != "decode" or not any(map(vllm, there))
        lack = no.lack
    else:
        if isinstance(made, Alone):
            chosen = made.decode.chosen
            if made.because == "no-prefill-engine":
                assert missing == "decode"
                assert not couples
                assert not little
                assert chosen in [c for c in free if vllm(c)]
            else:
                assert chosen in little
                assert (made.because == "short-prompt") == (tokens < least)
        else:
            assert isinstance(made, PairDecision)
            assert not little
            assert any(p is made.prefill.chosen and d is made.decode.chosen for p, d in ready)
            assert bool(made.decode.parts) is explain
    if lack is not None:
        possible = [(p, d) for p in prefill for d in decode if fit(p, d)]
        assert lack == ("tried" if possible else "incompatible" if prefill else "none")
