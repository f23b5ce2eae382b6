"""The conformance suite's own probe, as its users run it, against the whole program with an engine that says its part.

What the engine says is what a model of the Hermes and Qwen3 families writes; where the request holds it to a schema, it
is told nothing and has to keep to that.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from enginehouse.domain.engine import ProtocolName
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.support import PYTHON

pytestmark = pytest.mark.e2e


def call(name: str, **arguments: object) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


ATTENDEES = [{"name": "Ana", "email": "ana@example.com"}, {"name": "Bo", "email": "bo@example.com"}]
NOTE = "Café ☕ in 東京 — naïve résumé 🚀"
SAID = {
    "What's the weather in Paris right now?": call("get_weather", city="Paris"),
    "Get the current weather in Paris and in Tokyo.": call("get_weather", city="Paris")
    + "\n"
    + call("get_weather", city="Tokyo", unit="c"),
    "What is 17 + 25?": "42",
    "Create an event titled": call(
        "create_event",
        title="Design review",
        start="2026-10-01T15:00:00Z",
        attendees=ATTENDEES,
        location={"city": "Berlin", "room": "4.12"},
    ),
    "Save a note titled": call("save_note", title="Grüße aus Zürich", body=NOTE),
    "What time is it on the server?": call("get_server_time"),
    '"temp_c": 18': "It is 18 °C in Paris, and the sky is clear.",
    "Think it through step by step": "<think>\n9.90 is larger than 9.11.\n</think>\n\n"
    + call("record_answer", answer="9.9"),
}
"""By a part of the prompt."""


@pytest.mark.parametrize("protocol", list(ProtocolName))
def test_o5_o6_the_probe_finds_no_fault(protocol: ProtocolName, engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", protocol=protocol.value, tokens_per_second=0, say_to=json.dumps(SAID)).run()
    serving = front("--engine", one.url, "--tool-parser", "hermes", "--reasoning-parser", "qwen3")
    url = f"http://127.0.0.1:{serving.port}/v1"
    command = [PYTHON, "-m", "canitoolcall", "probe", "--base-url", url, "--model", "mock", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    report = json.loads(done.stdout)
    bad = [
        f"{one['scenario_id']} {one['check']} stream={one['stream']}: {one['status']} {one['detail']} {one['warnings']}"
        for one in report["outcomes"]
        if one["status"] != "pass" or one["warnings"]
    ]
    assert not bad, "\n".join(bad)
    assert done.returncode == 0
    assert report["summary"]["pass"] == len(report["outcomes"]) == 27
    assert sum(call["observed"] is not None for call in report["outcomes"]) == 18
    held = [request for request in one.seen("request") if request.get("constraint")]
    assert len(held) == 2  # the forced call, streamed and not
    serving.wait_idle()
