"""Policy kv before the engines' own servers: what is predicted is what the engine then reports, to the token.

The native rigs have a truthful cache and the engines' own event frames behind the real gRPC servers; vLLM on the CPU is
all of vLLM (scripts/test-vllm-cpu).
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engine_peers import SGLANG, SGLANG_OLD, VLLM_CPU, VLLM_NATIVE, Kind, Server, serve
from tests.e2e.conftest import MakeFront
from tests.e2e.support import WITHIN, Front
from tests.support import PYTHON, free_ports, running, until

pytestmark = pytest.mark.e2e

RIGS = Path(__file__).parents[1] / "rigs"

_topics = iter(range(10**6))


@dataclass(frozen=True)
class Way:
    """An engine, and how the frontend finds its events."""

    kind: Kind
    trust: str
    """That its ranks come to."""
    block: int = 16
    named: bool = False
    """The engine's address says the ports."""

    def param(self) -> Any:
        return pytest.param(
            self, id=f"{self.kind.name}{'-by-port' if self.named else ''}", marks=self.kind.param().marks
        )


WAYS = (
    Way(SGLANG, "synced"),
    Way(SGLANG_OLD, "synced"),
    Way(VLLM_NATIVE, "synced"),
    Way(VLLM_CPU, "partial", block=32),  # its connection knows no history
    Way(VLLM_CPU, "synced", block=32, named=True),
)


class Fleet:
    """Running engines of one way: two, so that there is a choice; one of the real vLLM."""

    def __init__(self, servers: list[Server], ports: list[int], model: Path | None) -> None:
        self.servers = servers
        self._ports = ports
        self._model = model

    def options(self, way: Way) -> list[object]:
        found: list[object] = ["--debug-headers"]
        for server, port in zip(self.servers, self._ports, strict=True):
            events = f"?kv-events-port={port}&kv-replay-port={port + 1}" if way.named else ""
            found += ["--engine", f"grpc://127.0.0.1:{server.port}{events}"]
        if self._model is not None:
            found += ["--tokenizer", self._model]
        return found


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Each kind once for all its tests: the real vLLM takes a minute to start."""
    base = tmp_path_factory.mktemp("real")
    started: dict[str, Fleet] = {}
    with ExitStack() as stack:

        def model() -> Path:
            made = base / "model"
            if not made.exists():
                with running([PYTHON, RIGS / "makemodel.py", "--no-weights", made]) as child:
                    assert child.process.wait(50) == 0, child.output
            return made

        def get(kind: Kind) -> Fleet:
            if kind.name not in started:
                if not kind.scripted:
                    server = stack.enter_context(serve(kind, base / kind.name))
                    started[kind.name] = Fleet([server], [server.port + 1], None)
                    return started[kind.name]
                servers, ports = [], []
                for name in "ab":
                    port = free_ports(2)
                    options: dict[str, Any] = {
                        "model": str(model()),
                        "kv_events": f"tcp://*:{port}",
                        "kv_replay": f"tcp://*:{port + 1}",
                        "tok_s": 0,
                    }
                    folder = base / f"{kind.name}-{name}"
                    servers.append(stack.enter_context(serve(kind, folder, **options)))
                    ports.append(port)
                started[kind.name] = Fleet(servers, ports, model())
            return started[kind.name]

        yield get


@pytest.fixture
def fleet(way: Way, fleets: Any) -> Fleet:
    found = fleets(way.kind)
    assert isinstance(found, Fleet)
    return found


@dataclass(frozen=True)
class Told:
    """One answer, and what the frontend said of its choice."""

    engine: str
    policy: str
    predicted: int
    reported: int
    prompt: int
    text: str


def post(front: Front, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=WITHIN)
    try:
        headers = {"Content-Type": "application/json", "x-enginehouse-debug": "explain"}
        connection.request("POST", path, json.dumps({"model": "m", **body}), headers)
        answer = connection.getresponse()
        raw = answer.read()
        assert answer.status == 200, (answer.status, raw, front.child.output[-3000:])
        return json.loads(raw), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def send(front: Front, path: str, body: dict[str, Any]) -> Told:
    answer, headers = post(front, path, body)
    decision = json.loads(headers["x-enginehouse-decision"])
    usage = answer["usage"]
    assert usage["prompt_tokens"] == decision["prompt_tokens"]
    choice = answer["choices"][0]
    return Told(
        decision["engine"],
        decision["policy"],
        decision["predicted_cached_tokens"],
        (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0),
        usage["prompt_tokens"],
        choice["text"] if "text" in choice else choice["message"]["content"],
    )


def best(front: Front, body: dict[str, Any]) -> int:
    """Most tokens of this request that any engine is believed to hold by its events."""
    page, _ = post(front, "/explain", body)
    return max(int(part["held"]) for part in page["candidates"])


def kv(front: Front) -> list[dict[str, Any]]:
    return [rank for row in front.page()["engines"] for rank in row["kv"] or []]


def following(front: Front, fleet: Fleet, way: Way) -> None:
    """Wait until all that the engines have published is known."""
    until(
        lambda: len(ranks := kv(front)) == len(fleet.servers) and all(rank["trust"] == way.trust for rank in ranks),
        within=WITHIN,
        saying=f"{kv(front)}\n{front.child.output[-3000:]}",
    )


def listening(front: Front, fleet: Fleet, way: Way) -> None:
    """Wait until nothing that the engines publish from now on is missed.

    A connection without history shows itself with the first batch: so they are made to say something.
    """

    def heard() -> bool:
        if way.trust != "synced":
            number = next(_topics)
            prompt = [500 + (23 * i + 107 * number) % 2000 for i in range(70)]
            send(front, "/v1/completions", {"prompt": prompt, "max_tokens": 1})
        return all(rank["trust"] == way.trust for rank in kv(front))

    until(heard, within=WITHIN, saying=f"{kv(front)}\n{front.child.output[-3000:]}")
    following(front, fleet, way)


def settled(front: Front) -> None:
    """Nothing is foreseen any more from requests under way: from here on only events speak."""
    until(lambda: all(rank["expected_blocks"] == 0 for rank in kv(front)), within=WITHIN, saying=str(kv(front)))


@pytest.mark.parametrize("way", [way.param() for way in WAYS])
def test_a_second_turn_of_a_chat_is_predicted_exactly(way: Way, fleet: Fleet, front: MakeFront) -> None:
    running = front(*fleet.options(way), policy="kv")
    listening(running, fleet, way)
    topic = next(_topics)
    messages = [{"role": "user", "content": " ".join(f"topic {topic} word {number}" for number in range(60))}]
    body = {"messages": messages, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    first = send(running, "/v1/chat/completions", body)
    following(running, fleet, way)
    for turn in range(3):
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": f"go on {turn}"}]
        settled(running)
        predicted = best(running, body)
        told = send(running, "/v1/chat/completions", body)
        assert told.predicted == predicted == told.reported
        assert told.engine == first.engine
        # What was sent before is held up to its last whole block; the answer may be encoded otherwise than it was made.
        assert told.reported >= (first.prompt - 1) // way.block * way.block > 0
        first = told
    (holder,) = [rank for rank in kv(running) if rank["reported_cached_tokens"]]
    assert holder["predicted_cached_tokens"] == holder["reported_cached_tokens"]
    assert (holder["trust"], holder["policy"], holder["verdict"]) == (way.trust, "events", "right")
    assert holder["block_size"] == way.block
    assert not holder["block_sizes_disagree"]
    assert not holder["malformed"]


@pytest.mark.parametrize("way", [way.param() for way in WAYS])
def test_prompts_of_token_ids_are_predicted_exactly(way: Way, fleet: Fleet, front: MakeFront) -> None:
    """Around every edge of a block. A second frontend sends nothing: what it knows, it has from events alone."""
    running, silent = (front(*fleet.options(way), policy="kv") for _ in range(2))
    for one in (running, silent):
        listening(one, fleet, way)
    block, number = way.block, next(_topics)
    prompt = [300 + (17 * i + 101 * number) % 2000 for i in range(6 * block)]

    def ask(tokens: list[int], held: int) -> Told:
        body = {"prompt": tokens, "max_tokens": 1, "ignore_eos": True, "temperature": 0}
        until(
            lambda: best(silent, body) == held,
            within=WITHIN,
            saying=f"{best(silent, body)} predicted of {len(tokens)}, not {held}: {kv(silent)}",
        )
        told = send(running, "/v1/completions", body)
        assert (told.predicted, told.reported) == (held, held), told
        return told

    whole = 4 * block
    owner = ask(prompt[:whole], 0).engine
    for length in (whole, whole - 1, whole, whole + 1, 2 * block, 2 * block + 1, block + 1, 6 * block, block):
        held = min(length - 1, whole) // block * block  # the last token of a prompt is computed anew
        assert ask(prompt[:length], held).engine == owner or not held
    other = [*prompt[: 2 * block], *(7000 - token for token in prompt[2 * block : 5 * block])]
    ask(other, 2 * block)
    ask(other, 4 * block)
    for one in (running, silent):
        assert all((rank["verdict"], rank["orphans"]) == ("right", 0) for rank in kv(one)), kv(one)


@pytest.mark.parametrize("way", [way.param() for way in WAYS])
def test_a_frontend_that_starts_late_predicts_what_it_can_know(way: Way, fleet: Fleet, front: MakeFront) -> None:
    """K9: by the replay exactly; by a connection without history nothing, and it never promises what is not there."""
    early = front(*fleet.options(way), policy="kv")
    listening(early, fleet, way)
    number = next(_topics)
    prompt = [300 + (19 * i + 103 * number) % 2000 for i in range(100)]
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0}
    first = send(early, "/v1/completions", body)
    late = front(*fleet.options(way), policy="kv")
    listening(late, fleet, way)
    if way.trust == "synced":
        until(lambda: best(late, body) > 0, within=WITHIN)
    told = send(late, "/v1/completions", body)
    if way.trust == "synced":
        assert told.engine == first.engine
        assert told.predicted == told.reported == 99 // way.block * way.block
    else:
        assert (told.predicted, told.reported) == (0, 99 // way.block * way.block)
