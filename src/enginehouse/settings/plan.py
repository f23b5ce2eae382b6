"""What would `serve` do with the settings, and which of them change nothing? Opens nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from enginehouse.core.output.registry import AUTO, NONE
from enginehouse.domain.engine import Target
from enginehouse.settings.table import rows

if TYPE_CHECKING:
    from enginehouse.settings import Settings


def plan(settings: Settings) -> Iterator[str]:
    """What `serve` would do, in lines for people."""
    chosen, fleet = settings.sources, settings.fleet
    yield f"listen on {settings.http.host}:{settings.http.port}"
    for text in chosen.engine:
        target = Target.parse(text)
        notes = ", ".join(str(note) for note in (target.role, target.protocol) if note)
        yield f"engine {target.url}" + (f" ({notes})" if notes else "")
    if chosen.engines_file:
        yield f"follow the engines in {Path(chosen.engines_file)}"
    for what, selector, port in (
        ("pods", chosen.pods, chosen.pod_port),
        ("prefill pods", chosen.prefill_pods, chosen.prefill_pod_port),
    ):
        if selector is not None:
            yield f"watch {what} {selector!r}, port {port if port is not None else 'from their annotation only'}"
    yield f"serve {fleet.model or 'the model that the first engine serves'}, {settings.topology} topology"
    yield f"tokenizer {fleet.tokenizer or 'from the engines'}, routing {settings.routing.policy}"
    formats = settings.formats
    for what, parser in (("calls of tools", formats.tool_parser), ("thinking", formats.reasoning_parser)):
        if parser != AUTO:
            yield f"leave {what} in the content" if parser == NONE else f"read {what} as {parser}"
    yield from _routing_plan(settings)


def _routing_plan(settings: Settings) -> Iterator[str]:
    routing, http = settings.routing, settings.http
    if routing.policy == "kv":
        port = settings.kv_sources.kv_events_port
        unsaid = f" (port {port} where they do not say which)" if port is not None else ""
        yield f"follow the KV events of engines that publish them{unsaid}; others count by what they were sent"
        yield f"remember up to {settings.kv.kv_index_blocks} blocks of their caches"
    key = {"header": f"header {http.affinity_header}", "user": "'user'", "prompt-cache-key": "'prompt_cache_key'"}
    if routing.affinity != "off":
        yield f"keep requests together that have the same {key[routing.affinity]}"
    if http.debug_headers:
        yield "tell clients that ask for it which engine was chosen and why"


def moot(settings: Settings) -> Iterator[str]:
    """Settings that were given and change nothing, because what they are for is off."""
    routing = settings.routing
    for row in rows(type(settings)):
        value = row.of(settings)
        if value == row.default:
            continue
        apart = "handover" in row.path or row.field == "kv_transfer_weight"
        if apart and settings.fleet.topology == "aggregated":
            yield f"{row.flag} changes nothing: it is for prefill and decode apart, and --topology is aggregated"
        elif row.field.startswith("kv_") or "kv_events" in row.path:
            if routing.policy != "kv":
                yield f"{row.flag} changes nothing: it is for --policy kv, and the policy is {routing.policy}"
        elif row.field == "prefill_wait" and settings.handover.prefill_missing != "wait":
            missing = settings.handover.prefill_missing
            yield f"{row.flag} changes nothing: it is for --prefill-missing wait, and that is {missing}"
        elif row.field == "affinity_header" and routing.affinity != "header":
            yield f"{row.flag} changes nothing: it is for --affinity header, and that is {routing.affinity}"
        elif row.field == "affinity_load_factor" and routing.affinity == "off":
            yield f"{row.flag} changes nothing: --affinity is off"
