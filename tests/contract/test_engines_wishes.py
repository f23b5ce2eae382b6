"""What requests may wish for besides their sampling, of every engine behind `ports.Engine`, mocks and real servers.

It is taken, it arrives as it was meant, and the probabilities that come back are those of the tokens beside them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from enginehouse.adapters.engines.engine import Engine
from enginehouse.domain.constraint import (
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
)
from enginehouse.domain.engine import Ability, ProtocolName
from enginehouse.domain.errors import EngineError, EngineRejected
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Finish
from tests.contract.engine_peers import KINDS, MOCK_SGLANG, MOCK_VLLM, Kind, Server, serve
from tests.contract.test_engines import Heard, ask, whole, with_engine

SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
TAG = '{"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}'
CONSTRAINTS: dict[Ability, Constraint] = {
    Ability.JSON_SCHEMA: JsonSchema(SCHEMA),
    Ability.JSON_OBJECT: JsonObject(),
    Ability.REGEX: Regex("a+"),
    Ability.GRAMMAR: Grammar('root ::= "a"'),
    Ability.CHOICE: OneOf(("a", "b.c")),
    Ability.STRUCTURAL_TAG: StructuralTag(TAG),
}
SAID = "so be it"
SCRIPTED = [kind for kind in KINDS if kind.scripted]


@pytest.fixture(scope="module", params=[kind.param() for kind in SCRIPTED])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind: Kind = request.param
    options = {"tokens_per_second": 0.0, "say": SAID} if kind.mock else {"tok_s": 0}
    if kind.protocol is ProtocolName.SGLANG:
        options["priority_scheduling"] = True
    with serve(kind, tmp_path_factory.getbasetemp() / f"wishes-{kind.name}", **options) as running:
        yield running


def seen(server: Server, name: str) -> dict[str, Any]:
    return server.wait_event(name, "request")


def test_o10_each_token_has_its_own_probability_and_the_most_likely_ones(server: Server) -> None:
    async def test(engine: Engine) -> None:
        for most in (0, 1, 3, 5, 20):
            heard, _, _ = ask(server, engine, 12, Sampling(temperature=0.0, ignore_eos=True, logprobs=most))
            assert await whole(heard) is None
            assert heard.finish is Finish.LENGTH
            assert len(heard.ids) == 12
            told = [one for delta in heard.deltas for one in delta.logprobs or ()]
            assert told == [server.likely(token, most) for token in heard.ids]
            assert all(len(delta.logprobs or ()) == len(delta.token_ids) for delta in heard.deltas)
            assert all(delta.prompt_logprobs is None for delta in heard.deltas)

    with_engine(server, test)


def test_o10_the_prompts_tokens_have_theirs_once(server: Server) -> None:
    async def test(engine: Engine) -> None:
        for own, most in ((None, 0), (None, 2), (1, 3), (4, 2)):
            sampling = Sampling(temperature=0.0, ignore_eos=True, logprobs=own, prompt_logprobs=most)
            heard, _, _ = ask(server, engine, 4, sampling)
            assert await whole(heard) is None
            (told,) = [delta.prompt_logprobs for delta in heard.deltas if delta.prompt_logprobs is not None]
            assert told == [None, *(server.likely(token, most) for token in server.prompt[1:])]
            assert heard.deltas[0].prompt_logprobs is told
            assert [delta.logprobs is None for delta in heard.deltas] == [own is None] * len(heard.deltas)

    with_engine(server, test)


def test_nothing_is_told_that_was_not_asked_for(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, _, _ = ask(server, engine, 4)
        assert await whole(heard) is None
        assert all(delta.logprobs is None and delta.prompt_logprobs is None for delta in heard.deltas)

    with_engine(server, test)


@pytest.mark.parametrize("ability", CONSTRAINTS)
def test_a_constraint_arrives_where_the_engine_is_able(server: Server, ability: Ability) -> None:
    constraint = CONSTRAINTS[ability]

    async def test(engine: Engine) -> None:
        heard, _, name = ask(server, engine, 4, Sampling(temperature=0.0, constraint=constraint))
        error = await whole(heard)
        if ability not in engine.info.abilities:
            assert isinstance(error, EngineRejected)
            return
        assert error is None
        event = seen(server, name)
        if server.kind.mock:
            assert event["constraint"]["kind"] in (type(constraint).__name__, "JsonSchema")
        elif server.kind.protocol is ProtocolName.SGLANG:
            arrived = {"json_schema": SCHEMA, "json_object": '{"type": "object"}', "regex": "a+"}
            arrived |= {"grammar": 'root ::= "a"', "choice": "(?:a|b\\.c)", "structural_tag": TAG}
            field = {"json_object": "json_schema", "grammar": "ebnf", "choice": "regex"}.get(ability, str(ability))
            assert event["sampling_params"][field] == arrived[ability]
        else:
            arrived = {"json_schema": json.loads(SCHEMA), "json_object": True, "regex": "a+"}
            arrived |= {"grammar": 'root ::= "a"', "choice": ["a", "b.c"], "structural_tag": TAG}
            field = {"json_schema": "json"}.get(ability, str(ability))
            assert event["params"]["structured_outputs"][field] == arrived[ability]
            assert event["reasoning_ended"] is True  # so that it holds from the first token on

    with_engine(server, test)


def test_a_bad_schema_is_the_requests_fault(server: Server) -> None:
    if server.kind.protocol is ProtocolName.SGLANG and not server.kind.mock:
        pytest.skip("the engine that would find out is pretended")

    async def test(engine: Engine) -> None:
        with server.faults(say="") if server.kind.mock else nullcontext():
            heard, _, _ = ask(server, engine, 4, Sampling(temperature=0.0, constraint=JsonSchema("{")))
            assert isinstance(await whole(heard), EngineRejected)

    with_engine(server, test)


def test_biases_arrive_where_the_engine_is_able(server: Server) -> None:
    async def test(engine: Engine) -> None:
        sampling = Sampling(temperature=0.0, logit_bias=((5, -100.0), (299, 2.5)))
        heard, _, name = ask(server, engine, 4, sampling)
        error = await whole(heard)
        if Ability.LOGIT_BIAS not in engine.info.abilities:
            assert isinstance(error, EngineRejected)
            return
        assert error is None
        event = seen(server, name)
        arrived = event["logit_bias"] if server.kind.mock else event["params"]["logit_bias"]
        assert {int(token): bias for token, bias in arrived.items()} == {5: -100.0, 299: 2.5}

    with_engine(server, test)


def test_a_priority_arrives_where_the_engine_heeds_it(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, _, name = ask(server, engine, 4, Sampling(temperature=0.0, priority=7))
        assert await whole(heard) is None
        able = Ability.PRIORITY in engine.info.abilities
        assert able is (server.kind.protocol is not ProtocolName.VLLM and server.kind.name != "sglang-0.5.16")
        turned = -7 if server.kind.protocol is ProtocolName.SGLANG else 7
        assert seen(server, name).get("priority") == (turned if able else None)

    with_engine(server, test)


def test_a_generating_engine_gives_no_embedding(server: Server) -> None:
    async def test(engine: Engine) -> None:
        assert Ability.EMBED not in engine.info.abilities
        assert Ability.GENERATE in engine.info.abilities
        with pytest.raises(EngineError):
            await engine.embed(uuid.uuid4().hex, server.prompt, timeout=10)

    with_engine(server, test)


# What only our mocks do.


@pytest.mark.parametrize("kind", [MOCK_VLLM, MOCK_SGLANG], ids=lambda kind: kind.name)
def test_an_embedding_engine_embeds_and_generates_nothing(kind: Kind, tmp_path: Path) -> None:
    with serve(kind, tmp_path / "engine", embeds=True, embedding_size=32) as server:

        async def test(engine: Engine) -> None:
            assert engine.info.abilities == {Ability.EMBED}
            first = await engine.embed(uuid.uuid4().hex, server.prompt, timeout=10)
            assert (len(first.values), first.prompt_tokens) == (32, len(server.prompt))
            assert await engine.embed(uuid.uuid4().hex, server.prompt, timeout=10) == first
            assert (await engine.embed(uuid.uuid4().hex, [300], timeout=10)).values != first.values
            heard = Heard()
            engine.generate(EngineRequest(uuid.uuid4().hex, server.prompt, 4), heard)
            assert await whole(heard) is not None
            with pytest.raises(EngineRejected):
                await engine.embed(uuid.uuid4().hex, [300] * 40_000, timeout=10)

        with_engine(server, test)


def test_an_old_mock_is_an_old_release(tmp_path: Path) -> None:
    with serve(MOCK_SGLANG, tmp_path / "engine", old_release=True) as server:

        async def test(engine: Engine) -> None:
            assert engine.info.version is None
            assert engine.info.instance_id is None
            assert {Ability.JSON_SCHEMA, Ability.REGEX} <= engine.info.abilities
            assert not engine.info.abilities & {Ability.GRAMMAR, Ability.CHOICE, Ability.PRIORITY}
            heard, _, name = ask(server, engine, 20, Sampling(constraint=JsonSchema(SCHEMA)))
            assert await whole(heard) is None
            assert seen(server, name)["constraint"]["kind"] == "JsonSchema"

        with_engine(server, test)


def test_other_settings_take_abilities_away(tmp_path: Path) -> None:
    with serve(MOCK_SGLANG, tmp_path / "engine", grammar_backend="none") as server:

        async def test(engine: Engine) -> None:
            assert not engine.info.abilities & {*CONSTRAINTS, Ability.PRIORITY}

        with_engine(server, test)


def test_several_answers_are_several_requests(server: Server) -> None:
    async def test(engine: Engine) -> None:
        asked = [ask(server, engine, 6, Sampling(seed=seed, ignore_eos=True, logprobs=1)) for seed in range(4)]
        assert [await whole(heard) for heard, _, _ in asked] == [None] * 4
        assert len({name for _, _, name in asked}) == 4
        assert [len(heard.ids) for heard, _, _ in asked] == [6] * 4

    with_engine(server, test)
