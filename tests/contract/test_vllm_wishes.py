"""What a real vLLM makes of wishes: its probabilities as its messages carry them, its text as it was asked to be."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateResponse
from tokenizers import Tokenizer

from enginehouse.adapters.engines.engine import Engine
from enginehouse.adapters.engines.protocol import Decoder
from enginehouse.domain.constraint import Constraint, Grammar, JsonObject, JsonSchema, OneOf, Regex, StructuralTag
from enginehouse.domain.engine import Ability
from enginehouse.domain.errors import EngineRejected
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta, Finish
from tests.contract.engine_peers import VLLM_CPU, Kind, Server, serve
from tests.contract.test_engines import Heard, ask, whole, with_engine


@pytest.fixture(scope="module", params=[VLLM_CPU.param()])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind: Kind = request.param
    with serve(kind, tmp_path_factory.getbasetemp() / f"wishes-{kind.name}") as running:
        yield running


class Tapped:
    """A decoder whose messages are noted on the way."""

    def __init__(self, decoder: Decoder, notes: list[Any]) -> None:
        self._decoder = decoder
        self._notes = notes

    def decode(self, message: bytes) -> Delta | None:
        self._notes.append(GenerateResponse.FromString(message))
        return self._decoder.decode(message)


def tap(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the engine sends from now on."""
    notes: list[Any] = []
    made = engine._protocol.decoder
    monkeypatch.setattr(engine._protocol, "decoder", lambda request: Tapped(made(request), notes))
    return notes


def best(top: Any, most: int) -> list[tuple[int, float]]:
    """However the engine lists them: the most likely ones, best first."""
    pairs = sorted(zip(top.token_ids, top.values, strict=True), key=lambda pair: -pair[1])
    return pairs[:most]


async def tokenizer_of(engine: Engine) -> Any:
    return Tokenizer.from_str((await engine.tokenizer_files())["tokenizer.json"].decode())


async def text_of(engine: Engine, heard: Heard) -> str:
    return str((await tokenizer_of(engine)).decode(heard.ids, skip_special_tokens=True))


async def no_blanks(engine: Engine) -> tuple[tuple[int, float], ...]:
    """A model that has learned nothing would fill JSON with white space for ever."""
    tokenizer = await tokenizer_of(engine)
    texts = ((token, tokenizer.decode([token], skip_special_tokens=False)) for token in range(8000))
    return tuple(
        (token, -100.0) for token, text in texts if text and not text.strip(' \t\n{}":,') and text.strip() != text
    )


@pytest.mark.parametrize("temperature", [0.0, 2.0])
@pytest.mark.parametrize("most", [0, 1, 4])
def test_o10_probabilities_are_those_of_its_messages(
    server: Server, monkeypatch: pytest.MonkeyPatch, temperature: float, most: int
) -> None:
    async def test(engine: Engine) -> None:
        notes = tap(engine, monkeypatch)
        sampling = Sampling(temperature=temperature, seed=3, ignore_eos=True, logprobs=most)
        heard, _, _ = ask(server, engine, 12, sampling)
        assert await whole(heard) is None
        told = [one for delta in heard.deltas for one in delta.logprobs or ()]
        sent = [note.chunk.output_logprobs for note in notes]
        assert [one.token_id for one in told] == heard.ids == [token for lists in sent for token in lists.token_ids]
        assert [one.logprob for one in told] == [value for lists in sent for value in lists.token_logprobs]
        tops = [best(top, most) for lists in sent for top in lists.top_logprobs]
        assert [list(one.top) for one in told] == (tops if most else [[]] * 12)
        if temperature == 0 and most:
            assert all(one.top[0] == (one.token_id, one.logprob) for one in told)
        if temperature and most:
            assert any(one.token_id not in dict(one.top) for one in told)

    with_engine(server, test)


@pytest.mark.parametrize("most", [0, 3])
def test_o10_the_prompts_are_those_of_its_messages(server: Server, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    async def test(engine: Engine) -> None:
        notes = tap(engine, monkeypatch)
        heard, _, _ = ask(server, engine, 3, Sampling(temperature=0.0, ignore_eos=True, prompt_logprobs=most))
        assert await whole(heard) is None
        (told,) = [delta.prompt_logprobs for delta in heard.deltas if delta.prompt_logprobs is not None]
        sent = next(note.chunk.input_logprobs for note in notes if note.chunk.HasField("input_logprobs"))
        assert told[0] is None
        rest = [one for one in told[1:] if one is not None]
        assert [one.token_id for one in rest] == server.prompt[1:] == list(sent.token_ids)[1:]
        assert [one.logprob for one in rest] == [one.value for one in sent.token_logprobs[1:]]
        if most:
            assert [list(one.top) for one in rest] == [best(top, most) for top in sent.top_logprobs[1:]]

    with_engine(server, test)


SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["red", "blue"]}, "many": {"type": "boolean"}},
    "required": ["kind", "many"],
    "additionalProperties": False,
}


def fits_schema(text: str) -> bool:
    found = json.loads(text)
    return set(found) == {"kind", "many"} and found["kind"] in ("red", "blue") and isinstance(found["many"], bool)


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        (JsonSchema(json.dumps(SCHEMA)), fits_schema),
        (Regex("[ab]{3}-[0-9]{2}"), lambda text: re.fullmatch("[ab]{3}-[0-9]{2}", text)),
        (OneOf(("sunny", "a.b", "rainy")), lambda text: text in ("sunny", "a.b", "rainy")),
        (Grammar('root ::= "yes" | "no" | "may" "be"'), lambda text: text in ("yes", "no", "maybe")),
        (
            StructuralTag('{"type": "structural_tag", "format": {"type": "const_string", "value": "exactly this"}}'),
            lambda text: text == "exactly this",
        ),
    ],
    ids=["json schema", "regex", "choice", "grammar", "structural tag"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_text_is_what_it_must_be(
    server: Server, constraint: Constraint, fits: Any, temperature: float
) -> None:
    async def test(engine: Engine) -> None:
        bias = await no_blanks(engine) if isinstance(constraint, JsonSchema) else ()
        sampling = Sampling(temperature=temperature, seed=5, constraint=constraint, logit_bias=bias)
        heard, _, _ = ask(server, engine, 200, sampling)
        assert await whole(heard) is None
        assert heard.finish is Finish.STOP
        assert fits(await text_of(engine, heard))

    with_engine(server, test)


def test_any_json_object_begins_as_one(server: Server) -> None:
    async def test(engine: Engine) -> None:
        heard, _, _ = ask(server, engine, 20, Sampling(temperature=1.0, seed=5, constraint=JsonObject()))
        assert await whole(heard) is None
        assert (await text_of(engine, heard)).lstrip().startswith("{")

    with_engine(server, test)


@pytest.mark.parametrize("constraint", [JsonSchema("{"), Grammar("no grammar")])
def test_what_cannot_be_read_is_the_requests_fault(server: Server, constraint: Constraint) -> None:
    async def test(engine: Engine) -> None:
        heard, _, _ = ask(server, engine, 8, Sampling(temperature=0.0, constraint=constraint))
        assert isinstance(await whole(heard), EngineRejected)

    with_engine(server, test)


def test_a_bias_forces_a_token_and_forbids_one(server: Server) -> None:
    async def test(engine: Engine) -> None:
        forced, _, _ = ask(server, engine, 5, Sampling(temperature=0.0, ignore_eos=True, logit_bias=((1234, 100.0),)))
        assert await whole(forced) is None
        assert forced.ids == [1234] * 5
        first = server.answer(1)[0]
        without, _, _ = ask(
            server, engine, 1, Sampling(temperature=0.0, ignore_eos=True, logit_bias=((first, -100.0),))
        )
        assert await whole(without) is None
        assert without.ids != [first]

    with_engine(server, test)


def test_o11_several_answers_to_one_prompt_are_requests_of_their_own(server: Server) -> None:
    async def test(engine: Engine) -> None:
        asked = [
            ask(server, engine, 8, Sampling(temperature=1.5, seed=seed, ignore_eos=True, logprobs=1))
            for seed in (1, 2, 3, 1)
        ]
        assert [await whole(heard) for heard, _, _ in asked] == [None] * 4
        assert len({name for _, _, name in asked}) == 4
        answers = [tuple(heard.ids) for heard, _, _ in asked]
        assert len(set(answers)) == 3  # the same seed, the same answer
        assert answers[0] == answers[3]

    with_engine(server, test)


def test_it_says_what_it_can_and_refuses_to_embed(server: Server) -> None:
    async def test(engine: Engine) -> None:
        assert engine.info.abilities == frozenset(Ability) - {Ability.EMBED, Ability.PRIORITY}
        with pytest.raises(EngineRejected):
            await engine.embed(uuid.uuid4().hex, server.prompt, timeout=20)
        heard = Heard()
        engine.generate(EngineRequest(uuid.uuid4().hex, server.prompt, 2, Sampling(priority=5)), heard)
        assert await whole(heard) is None

    with_engine(server, test)
