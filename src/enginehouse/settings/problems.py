"""Do the settings make sense together? Only `…_files…` opens any."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from enginehouse.adapters.link.token import read_token
from enginehouse.core.output.selection import format_problems
from enginehouse.core.routing.handover_settings import ENGINES_GIVE_UP
from enginehouse.core.selector import selector_fault
from enginehouse.domain.engine import InvalidTarget, Role, Target
from enginehouse.settings.table import rows

if TYPE_CHECKING:
    from enginehouse.settings import Settings

MAY_BE_ZERO = frozenset(
    {
        "cut_grace",
        "failures_in_a_row",
        "hold_timeout",
        "keep_unready",
        "kv_decode_weight",
        "kv_queue_weight",
        "kv_request_weight",
        "kv_transfer_weight",
        "kv_wait_weight",
        "max_handovers_per_prefill",
        "port",
        "probe_retry_first",
        "retry_jitter",
        "shutdown_grace",
        "shutdown_timeout",
    }
)
"""Numbers for which 0 is a meaning and not a mistake, besides those whose default is 0."""

_HOST_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}"

_PORTS = frozenset({"port", "pod_port", "prefill_pod_port", "kv_events_port", "kv_replay_port"})


def problems(settings: Settings) -> list[str]:
    """One sentence for each: the setting, its value, what is wrong, what is right. Empty: none."""
    return [*_numbers(settings), *_engines(settings), *format_problems(settings.formats), *_together(settings)]


def _numbers(settings: Settings) -> Iterator[str]:
    for row in rows(type(settings)):
        value = row.of(settings)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        zero = row.field in MAY_BE_ZERO or row.default == 0
        if row.field in _PORTS:
            least = 0 if zero else 1
            if not least <= value <= 65535:
                yield f"{row.flag}: {value} is not a port; {least} to 65535 are"
        elif value < 0 or (value == 0 and not zero):
            yield f"{row.flag}: {value:g} is too small; it must be {'0 or more' if zero else 'more than 0'}"


def _engines(settings: Settings) -> Iterator[str]:
    seen: dict[str, str] = {}
    for text in settings.sources.engine:
        try:
            target = Target.parse(text)
        except InvalidTarget as error:
            yield f"--engine: {error}"
            continue
        if target.url in seen:
            yield f"--engine: {text!r} and {seen[target.url]!r} are the same engine; give it once"
        seen[target.url] = text
        if target.role is Role.PREFILL and settings.fleet.topology == "aggregated":
            yield f"--engine: {text!r} is a prefill engine, but --topology is aggregated; use disaggregated or auto"


def _together(settings: Settings) -> Iterator[str]:
    chosen = settings.sources
    if not (chosen.engine or chosen.engines_file or chosen.pods):
        yield (
            "no source of engines: give --engine grpc://HOST:PORT, --engines-file FILE or --pods SELECTOR"
            + (" (prefill pods alone cannot answer)" if chosen.prefill_pods else "")
        )
    for flag, selector, port in (
        ("pods", chosen.pods, chosen.pod_port),
        ("prefill-pods", chosen.prefill_pods, chosen.prefill_pod_port),
    ):
        port_flag = f"--{flag.removesuffix('s')}-port"
        if selector is None and port is not None:
            yield f"{port_flag}: {port} is given, but --{flag} is not; give both or none"
        if selector is not None and (fault := selector_fault(selector)):
            yield f"--{flag}: {selector!r} {fault}; expected labels such as app=sglang,tier in (a,b)"
    kv = settings.kv_sources
    if kv.kv_replay_port is not None and kv.kv_events_port is None:
        yield f"--kv-replay-port: {kv.kv_replay_port} is given, but --kv-events-port is not; give both or the latter"
    if settings.link.key is not None and settings.link.cert is None:
        yield f"--link-key: {settings.link.key!r} is given, but --link-cert is not; give both, or the certificate alone"
    if chosen.prefill_pods is not None and settings.fleet.topology == "aggregated":
        yield "--prefill-pods is given, but --topology is aggregated; use disaggregated or auto"
    if not _can_be_host(settings.http.host):
        yield f"--host: {settings.http.host!r} is neither an address nor a name; 0.0.0.0 and :: are all addresses"
    if not re.fullmatch(_HEADER_NAME, settings.http.affinity_header):
        yield f"--affinity-header: {settings.http.affinity_header!r} is no name of a header; x-session-id is one"
    if settings.routing.affinity_load_factor < 1:
        factor = settings.routing.affinity_load_factor
        yield f"--affinity-load-factor: {factor:g} is too small; below 1 even an even load is too much"
    if (timeout := settings.handover.handover_timeout) >= ENGINES_GIVE_UP:
        yield f"--handover-timeout: {timeout:g} is too large; below the {ENGINES_GIVE_UP:g} s of the engines is right"
    if chosen.pods is not None and chosen.pods == chosen.prefill_pods:
        yield f"--prefill-pods: {chosen.pods!r} is also --pods; a pod cannot be in both pools"


def _can_be_host(text: str) -> bool:
    """Asks nobody: a name that means nothing is found out by `serve`. Whose last label is a number is no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        return not labels[-1].isdigit() and all(re.fullmatch(_HOST_LABEL, label) for label in labels)
    return True


def tls_files_problems(settings: Settings) -> Iterator[str]:
    """Files that the settings name for TLS and that cannot be used."""
    link = settings.link
    named = {"--link-ca": link.ca, "--link-cert": link.cert, "--link-key": link.key}
    for flag, path in named.items():
        if path is not None:
            try:
                Path(path).read_bytes()
            except OSError as error:
                yield f"{flag}: {path!r} cannot be read: {error.strerror}"
                return
    if any(named.values()):
        try:
            link.tls_context()
        except OSError as error:  # ssl.SSLError is one
            given = ", ".join(flag for flag, path in named.items() if path is not None)
            yield f"{given}: not usable PEM files, or a key that does not fit: {error}"


def token_file_problems(settings: Settings) -> Iterator[str]:
    """A token file for engines that cannot be used."""
    path = settings.link.token_file
    if path is not None:
        try:
            read_token(path)
        except OSError as error:
            yield f"--link-token-file: {path!r} cannot be read: {error.strerror}"
        except ValueError as error:
            yield f"--link-token-file: {path!r} cannot be used: {error}"


def missing_files(settings: Settings) -> Iterator[str]:
    """Files that are not there. They stop nothing here: `check` may run elsewhere than `serve`."""
    file, tokenizer = settings.sources.engines_file, settings.fleet.tokenizer
    if file is not None:
        try:
            if not file.stat() or not file.is_file():
                yield f"--engines-file: {str(file)!r} is not a regular file"
        except OSError as error:
            yield f"--engines-file: {str(file)!r} cannot be read: {error.strerror}"
    if tokenizer is not None:
        from enginehouse.adapters.tokenizer.errors import TokenizerError
        from enginehouse.adapters.tokenizer.files import find_files

        try:
            find_files(tokenizer)
        except (TokenizerError, OSError) as error:
            yield f"--tokenizer: {error}"
    template = settings.fleet.chat_template
    if template is not None and not template.is_file():
        yield f"--chat-template: {str(template)!r} is no file here"
    if settings.sources.pods is not None or settings.sources.prefill_pods is not None:
        from enginehouse.adapters.kube.access import KubeConfigError
        from enginehouse.adapters.kube.locate import find_access

        try:
            find_access(settings.kube, os.environ)
        except KubeConfigError as error:
            yield f"{error}; serve would not start here"
