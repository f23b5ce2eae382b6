"""Which test guards which fault of the field: `python -m tests.faults` writes docs/faults.md from the tests' names.

A test that guards a fault carries its id in its name: `test_d4_a_bare_deletion_withdraws_at_once`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "faults.md"

WANT = {
    "D1": "A deletion that fell into a gap of the watch is withdrawn at the next listing.",
    "D2": "An expired version, as HTTP status or in the stream, is dropped: one listing per failure, with back-off.",
    "D3": "A watch that is half open is given up and listed again within a bound.",
    "D4": "DELETED withdraws by itself, with no other sign before it.",
    "D6": "Another port, address, role or restart count of the same pod is a new incarnation.",
    "D8": "A pod that stops matching is withdrawn; one that moves between pools is never in both.",
    "D9": "A removal goes by stable key; one that matches nothing is counted and told.",
    "D10": "A pod that is healthy but cannot generate (a follower node) is refused with a reason.",
    "D11": "A deletion timestamp alone ends selection; running streams go on.",
    "D12": "Nothing is sent to an engine before its probe has passed.",
    "D13": "A probe that fails is repeated as long as the pod may serve, and ends with that.",
    "D14": "A pod that flaps is withdrawn at once and taken back without a new probe.",
    "D15": "A rolling update leaves no moment without an answer.",
    "D16": "A new generation with another card joins once the old one is gone.",
    "D17": "An engine of another model, tokenizer, block size or length is refused, with both values.",
    "D18": "Ports that are no ports refuse the pod with a reason; a port that leaves the list leaves the fleet.",
    "D19": "IPv6 addresses are bracketed; with two families the pod's first address is used.",
    "D20": "A refusal by RBAC is told with verb, resource and namespace; what is known stays.",
    "D21": "Rotated tokens and authorities are read again.",
    "D22": "While the API server is away the known pods go on serving, and its return is noticed at once.",
    "D25": "Feeds leave no readers or sockets behind; selectors reach the server whole.",
    "D26": "Every matched pod that does not serve has a state and a reason on one page.",
    "D28": "Liveness is the process; readiness is that the model can be served, with reasons; probes need no exec.",
    "M1": "Withdrawing is not closing: streams run until they end or the drain deadline.",
    "M2": "An engine lost with nothing sent is replaced; afterwards the client gets a well-formed error.",
    "M3": "A retry goes to another engine, and a transport failure puts the first in doubt at once.",
    "M4": "An answer that was cut is never continued by another engine: an error event, no spliced text.",
    "M5": "Whatever way a request ends, its load is released.",
    "M7": "Own counts spread a burst evenly; no load that engines report is used yet.",
    "M8": "Unknown model: 404 model_not_found. Known but no engine: 503 with Retry-After.",
    "M9": "No load call is made that could hang; the limit on requests is kept by own counts.",
    "M11": "Remove then add within a blink: the newcomer stays, late words of the old one change nothing.",
    "M12": "Among equals the choice is random, so that several frontends do not march together.",
    "M14": "An engine that hangs delays no other engine's requests.",
    "M15": "Leaving is ordered: not ready, grace, no new connections, drain, cut.",
    "K1": "The index has a hard limit, forgets above it, and tells its size.",
    "K2": "A new incarnation, or a publisher that begins anew, holds nothing of what the old one held.",
    "K4": "Missing batches are noticed, rank by rank; what cannot be had again voids the view: nothing is credited.",
    "K5": "Engines of other hashes and block sizes are credited with what they hold, or the disagreement is shown.",
    "K6": "Why events do not count stands on `/engines`; an index that proves wrong is believed no more.",
    "K7": "The unit is a rank of an engine, with the engine's own numbers; batches of another rank are noticed.",
    "K9": "A new frontend learns by replay; tiers, adapters and salts never mix.",
    "P1": "A decode leg that fails stops the prefill leg at once; with nothing sent the request moves on.",
    "P2": "Both legs are watched from the start; what the client did wrong is its 400 at once, whichever leg says so.",
    "P3": "Rooms are random numbers of 63 bits, new for each attempt, never a client's, and lose no digit on the way.",
    "P5": "Engines of different groups, generations, protocols or cache layouts are never paired.",
    "P6": "A missing pool follows the stated policy, is shown with it, and hangs nobody.",
    "P7": "A transfer that failed is an error, never a clean answer.",
    "P9": "The prefill leg generates one token, whichever way the request spells its length.",
    "G1": "Cumulative and incremental streams give the same answer.",
    "G2": "Silent calls are not pinged, and survive.",
    "G3": "Large messages pass; too large ones are the caller's error.",
    "G4": "Every gRPC status has its meaning, by table.",
    "G5": "A stream that ends without a finish is an error, never a clean answer.",
    "G6": "Tokens of the last message are kept, and we count ourselves.",
    "G8": "Ids at engines are ours, new for each attempt; the client's is only echoed.",
    "G9": "Health alone does not bring an engine back that was mute.",
    "G11": "Without a limit the answer may fill the context; the model's defaults hold.",
    "G12": "Many streams to one engine do not queue at an HTTP/2 limit.",
    "O1": "Exactly one finish chunk per choice, then [DONE].",
    "O2": "Characters split over tokens come out whole; streamed text equals the whole.",
    "O3": "Stop strings match across tokens; only possible beginnings are held back; the engine is aborted.",
    "O5": "Calls are told once each by rising index, and their joined arguments parse, however tokens come.",
    "O6": "No mark of a call or of thinking gets into the content, also where a limit cuts.",
    "O7": "Usage comes only when asked for, last and with no choices.",
    "O8": "Every error is one nested envelope that the official client parses.",
    "O10": "Log probabilities in both shapes are those of the text's tokens, streamed and whole.",
    "O11": "Answers to several prompts are in order, are summed in one usage, and end in one [DONE].",
    "O12": "Chat templates render as their reference does.",
    "O14": "An adapter is asked for only where it is loaded now; the list is the union; a name that nobody has is 404.",
    "S1": "A client that leaves ends the work at the engine, at every stage.",
    "S2": "A client that does not read costs bounded memory, and the engine feels it.",
    "S3": "Nothing that a client sends chooses engine, rank or id.",
    "S5": "No request brings an engine in.",
    "S6": "Metric series do not grow with what clients send or pods that came and went.",
    "S8": "Malformed framing is answered 400 and the connection closed.",
    "S9": "Engines behind TLS and mutual TLS work; no secret reaches a log.",
    "F2": "No token makes a task of its own; `python -m bench.frontend` publishes what one costs.",
    "F4": "Long texts are encoded off the loop; a chat that goes on is encoded only where it is new.",
}
"""What must hold, in our words, for each fault that touches what is built."""

ELSEWHERE = {
    "M13": "Frontends exchange no state, so none can linger: each counts its own requests only.",
}
"""Faults of the same lists that no test can guard, and why."""


def tests_by_fault() -> dict[str, list[str]]:
    """Fault id to node ids, found by name."""
    found: dict[str, list[str]] = {fault: [] for fault in WANT}
    for node in node_ids():
        for fault in re.findall(r"(?<=_)([a-z]\d+)(?=_)", node.partition("::")[2]):
            if fault.upper() in found:
                found[fault.upper()].append(node)
    return found


def node_ids() -> Iterator[str]:
    """`path::name` of every test function of the repository."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{path.relative_to(ROOT).as_posix()}::{node.name}"


def page() -> str:
    """docs/faults.md."""
    lines = [
        "# Faults and the tests that guard against them",
        "",
        "Written by `scripts/faults-docs` from the tests' names. The ids are those of a list of faults that users of",
        "other frontends reported; each is told here as what must hold.",
        "",
        "| Id | What must hold | Tests |",
        "|---|---|---|",
    ]
    for fault, nodes in tests_by_fault().items():
        lines.append(f"| {fault} | {WANT[fault]} | {'<br>'.join(f'`{node}`' for node in nodes)} |")
    lines += ["", "Not guarded by a test:", "", "| Id | Why |", "|---|---|"]
    lines += [f"| {fault} | {why} |" for fault, why in ELSEWHERE.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
