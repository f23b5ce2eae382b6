"""Which engines are asked for a few tokens to see whether they live."""

import asyncio

import pytest

from enginehouse.domain.engine import Ability, ProtocolName, Role, Target
from enginehouse.domain.errors import EngineFailed, EngineOverloaded, ProbeFailed
from enginehouse.service.membership_canary import canary
from enginehouse.testing.engines import FakeEngine, FakeEngines

WHERE = "10.0.0.1:9000"


async def _engine(protocol: ProtocolName, role: Role | None, hint: Role | None = None) -> FakeEngine:
    engines = FakeEngines()
    engines.listen(WHERE, protocol=protocol, role=role)
    asked = Target.parse(f"grpc://{WHERE}" + (f"?role={hint}" if hint else ""))
    return await engines.probe(asked)


@pytest.mark.parametrize(
    ("protocol", "role", "hint", "is_asked"),
    [
        (ProtocolName.VLLM, None, None, True),
        (ProtocolName.VLLM, None, Role.PREFILL, True),
        (ProtocolName.VLLM, None, Role.DECODE, True),
        (ProtocolName.VLLM_NATIVE, None, Role.PREFILL, True),
        (ProtocolName.VLLM_NATIVE, None, Role.DECODE, True),
        (ProtocolName.SGLANG, Role.AGGREGATED, None, True),
        (ProtocolName.SGLANG, Role.PREFILL, None, False),
        (ProtocolName.SGLANG, Role.DECODE, None, False),
    ],
)
def test_g9_whoever_can_generate_alone_is_asked_to(
    protocol: ProtocolName, role: Role | None, hint: Role | None, is_asked: bool
) -> None:
    async def main() -> None:
        engine = await _engine(protocol, role, hint)
        await canary(engine)
        assert len(engine.calls) == is_asked
        assert all(call.request.handover is None and not call.request.prefill_only for call in engine.calls)

    asyncio.run(main())


def test_g9_a_prefill_engine_that_is_full_lives_and_one_that_fails_does_not() -> None:
    async def main() -> None:
        engine = await _engine(ProtocolName.VLLM, None, Role.PREFILL)
        engine.process.fails = lambda _: EngineOverloaded("full")
        await canary(engine)
        engine.process.fails = lambda _: EngineFailed("no")
        with pytest.raises(ProbeFailed):
            await canary(engine)

    asyncio.run(main())


def test_g9_an_engine_that_only_embeds_is_asked_for_that() -> None:
    async def main() -> None:
        engines = FakeEngines()
        engines.listen(WHERE, abilities=frozenset({Ability.EMBED}))
        engine = await engines.probe(Target.parse(f"grpc://{WHERE}"))
        await canary(engine)
        assert (len(engine.embedded), len(engine.calls)) == (1, 0)
        engine.process.fails = lambda _: EngineFailed("no")
        with pytest.raises(ProbeFailed):
            await canary(engine)

    asyncio.run(main())
