"""Engines to hold the adapters against: our mock's fronts, the real native servers, the real vLLM.

Each is a program of its own with known answers, a log of what it saw, and faults on demand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateResponse

from enginehouse.domain.engine import ProtocolName
from enginehouse.domain.stream import TokenLogprob
from enginehouse.mock.likely import likely
from enginehouse.mock.vocabulary import load_vocabulary
from tests.rigs.rigkit import likely as rig_likely
from tests.rigs.rigkit import output_token
from tests.support import PYTHON, ROOT, Child, free_port, free_ports, json_lines, running, until
from tests.unit.adapters.engines.doubles import golden, messages

RIGS = ROOT / "tests" / "rigs"
RECORDED_PROMPT = [300 + 37 * i for i in range(100)]
RANKS = 2


@dataclass(frozen=True)
class Kind:
    """A way of running an engine."""

    name: str
    protocol: ProtocolName
    rig: str | None = None
    """Marker of the rig; None for our mock, which needs nothing."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def param(self) -> Any:
        """For pytest.mark.parametrize and fixtures."""
        marks = [pytest.mark.rig(self.rig)] if self.rig else []
        if self.rig == "vllm-cpu":
            marks.append(pytest.mark.timeout(600))
        return pytest.param(self, id=self.name, marks=marks)

    @property
    def mock(self) -> bool:
        return self.rig is None

    @property
    def scripted(self) -> bool:
        """Answers by rule, takes faults, writes a log: all but the real engine."""
        return self.rig != "vllm-cpu"


S, V, N = ProtocolName.SGLANG, ProtocolName.VLLM, ProtocolName.VLLM_NATIVE
MOCK_SGLANG = Kind("mock-sglang", S)
MOCK_SGLANG_INCREMENTAL = Kind("mock-sglang-incremental", S, options={"incremental": True})
MOCK_VLLM = Kind("mock-vllm", V)
MOCK_NATIVE = Kind("mock-vllm-native", N)
SGLANG = Kind("sglang", S, "sglang")
SGLANG_INCREMENTAL = Kind("sglang-incremental", S, "sglang", {"incremental": True})
SGLANG_OLD = Kind("sglang-0.5.16", S, "sglang-0.5.16", {"sglang_version": "0.5.16"})
VLLM_NATIVE = Kind("vllm-native", N, "vllm-native")
VLLM_CPU = Kind("vllm-cpu", V, "vllm-cpu")
KINDS = (
    MOCK_SGLANG,
    MOCK_SGLANG_INCREMENTAL,
    MOCK_VLLM,
    MOCK_NATIVE,
    SGLANG,
    SGLANG_INCREMENTAL,
    SGLANG_OLD,
    VLLM_NATIVE,
    VLLM_CPU,
)

_FAULTS = {  # ours -> mock's, rigs'
    "unhealthy": (("healthy", False), ("healthy", False)),
    "mute": (("never_answer", True), ("never_answer", True)),
    "error_after": (("error_after_tokens", None), ("error_after_tokens", None)),
    "stall_after": (("stall_after_tokens", None), ("stall_after_tokens", None)),
    "die_after": (("die_after_tokens", None), ("die_after_tokens", None)),
    "reject": (("reject_status", None), ("abort_status", None)),
    "vanish_after": (("vanish_after_tokens", None), None),
    "say": (("say", None), None),
    "drop_kv": (("kv_drop_batches", None), None),
    "drop_kv_for_ever": (("kv_drop_for_ever", True), None),
}


class Server:
    """One running engine."""

    def __init__(self, kind: Kind, port: int, folder: Path, child: Child | None) -> None:
        self.kind = kind
        self.port = port
        self.child = child
        self._control = folder / "control.json"
        self._log = folder / "log"

    @property
    def prompt(self) -> list[int]:
        """One that it knows an answer to: for the real engine the recorded one, else ids of any vocabulary."""
        return [300 + 17 * i for i in range(100)] if self.kind.scripted else RECORDED_PROMPT

    def answer(self, length: int) -> list[int]:
        """The first tokens of its answer to that prompt, greedy and with EOS ignored."""
        if self.kind.mock:
            return load_vocabulary().answer(self.prompt, length)
        if self.kind.scripted:
            return [output_token(tuple(self.prompt), i, 8000) for i in range(length)]
        sent = map(GenerateResponse.FromString, messages(golden("vllm-0.32.0")["duplicate id, the first"]))
        recorded = [token for message in sent for token in message.chunk.token_ids]
        assert length <= len(recorded)
        return recorded[:length]

    def likely(self, token: int, most: int) -> TokenLogprob:
        """What it says of one of its tokens, or of the prompt's; for scripted ones."""
        if self.kind.mock:
            found = likely(token, most, load_vocabulary().size)
            return TokenLogprob(token, found.logprob, found.best)
        logprob, _, best = rig_likely(token, most, 8000)
        return TokenLogprob(token, logprob, tuple(best))

    def events(self, request_id: str, event: str) -> list[dict[str, Any]]:
        """What it has logged about a request; native vLLM adds to ids."""
        return [
            line
            for line in json_lines(self._log)
            if line.get("event") == event and str(line["rid"]).startswith(request_id)
        ]

    def wait_event(self, request_id: str, event: str) -> dict[str, Any]:
        found = until(
            lambda: self.events(request_id, event), saying=f"no {event} of {request_id}: {json_lines(self._log)[-5:]}"
        )
        return dict(found[0])

    @contextmanager
    def faults(self, **faults: Any) -> Iterator[None]:
        """Misbehave for the length of a with block. Skips the test where this engine cannot."""
        values = {}
        for name, value in faults.items():
            pair = _FAULTS[name][0 if self.kind.mock else 1]
            if (
                pair is None
                or not self.kind.scripted
                or (name == "reject" and not self.kind.mock and self.kind.protocol is N)
            ):
                pytest.skip(f"{self.kind.name} has no fault {name}")
            values[pair[0]] = value if pair[1] is None else pair[1]
        self._obey(values)
        try:
            yield
        finally:
            self._obey({})

    def _obey(self, values: Mapping[str, Any]) -> None:
        part = self._control.with_suffix(".part")
        part.write_text(json.dumps(values))
        part.rename(self._control)
        if self.kind.mock:  # it tells when it has read the file; rigs look at it whenever they do something
            found = self._control.stat()
            stamp = [found.st_mtime_ns, found.st_ino]
            until(
                lambda: any(line["event"] == "faults" and line["stamp"] == stamp for line in json_lines(self._log)),
                saying=f"the engine has not read {values}",
            )


@contextmanager
def serve(kind: Kind, folder: Path, *, env: Mapping[str, str] | None = None, **options: Any) -> Iterator[Server]:
    """Run one engine until its port is open. options: of the mock or the rig, with underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    if not kind.scripted:
        with _vllm_cpu(folder) as port:
            yield Server(kind, port, folder, None)
        return
    port = free_port()
    common = {
        "control": str(folder / "control.json"),
        "log": str(folder / "log"),
        "port": port,
        **kind.options,
        **options,
    }
    with running(_command(kind, folder, common), env=env) as child:
        child.wait_port(port)
        yield Server(kind, port, folder, child)


def _command(kind: Kind, folder: Path, options: Mapping[str, Any]) -> list[str | Path]:
    if kind.mock:
        values = {"protocol": str(kind.protocol), **options}
        return [PYTHON, "-m", "enginehouse", "mock", *_flags(values)]
    if kind.protocol is S:
        return [PYTHON, RIGS / "sglang_native_server.py", *_flags(options)]
    return [PYTHON, RIGS / "vllm_native_server.py", *_flags({"model": str(_model(folder)), **options})]


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            yield flag
        elif value is not False:
            yield from (flag, str(value))


def _model(folder: Path) -> Path:
    """The rigs' model folder, made once for a test run."""
    made = folder.parent / "model"
    if not made.exists():
        with running([PYTHON, RIGS / "makemodel.py", "--no-weights", made]) as child:
            assert child.process.wait(50) == 0, child.output
    return made


@contextmanager
def _vllm_cpu(folder: Path) -> Iterator[int]:
    port = free_ports(3)
    script = RIGS / "vllm_cpu.sh"
    try:
        with running([script, "start", folder, str(port)]) as child:
            assert child.process.wait(400) == 0, child.output
        yield port
    finally:
        with running([script, "stop", folder]) as child:
            child.process.wait(60)
