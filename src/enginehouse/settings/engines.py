"""Which engines make the fleet: the settings that only the composition root reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TopologyName = Literal["auto", "aggregated", "disaggregated"]


@dataclass(frozen=True)
class SourceSettings:
    """Where engines are known from. Several sources add up to one fleet."""

    engine: tuple[str, ...] = ()
    """A fixed engine, `grpc://HOST:PORT[?role=prefill&protocol=vllm]` (`grpcs://` for TLS). Repeated for each engine.
    `role` is needed for prefill and decode engines that cannot report it (vLLM); `protocol` skips finding it out;
    `kv-events-port=5557&kv-replay-port=5558` says where its KV events are, for engines that do not or say it wrong;
    `bootstrap-host=HOST&bootstrap-port=8998` likewise where decode engines meet a prefill engine of SGLang;
    `group=NAME` pairs it with engines of the same group only."""
    engines_file: Path | None = None
    """YAML file with a list of such addresses, read again whenever it changes. While its content is wrong the last good
    list stands."""
    pods: str | None = None
    """Label selector of the pods that answer requests, as kubectl takes it: `app=sglang,role notin (prefill)`."""
    pod_port: int | None = None
    """gRPC port of those pods. A pod's own annotation (port-annotation) comes before it."""
    prefill_pods: str | None = None
    """Label selector of the pods that only prefill."""
    prefill_pod_port: int | None = None
    """gRPC port of the prefill pods."""


@dataclass(frozen=True)
class FleetSettings:
    """What the fleet serves."""

    model: str | None = None
    """Model name that clients ask for. None: the name that the first engine serves; other names are then refused."""
    tokenizer: str | None = None
    """Folder with tokenizer.json, or a repository id in the local hub cache. None: what the engines hand out, else the
    path they name if it exists here."""
    chat_template: Path | None = None
    """File with a chat template (Jinja), used instead of the model's own."""
    topology: TopologyName = "auto"
    """Whether engines do a whole request each (`aggregated`) or prefill and decode apart (`disaggregated`). `auto`
    decides by the engines found at the start. It does not change while the program runs."""
