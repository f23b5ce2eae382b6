"""The settings of `serve`: composed from those declared beside each component; nothing is declared twice.

One declaration makes a flag (`--drain-timeout`), an environment variable (`ENGINEHOUSE_DRAIN_TIMEOUT`), a key of the
`--config` file (`drain-timeout`) and a row of docs/settings.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import cyclopts

from enginehouse.adapters.engines.kv_sources import KvSourceSettings
from enginehouse.adapters.engines.protocol import ProbeSettings
from enginehouse.adapters.engines_file import EnginesFileSettings
from enginehouse.adapters.kube.settings import KubeSettings
from enginehouse.adapters.kv_events.settings import KvEventSettings
from enginehouse.adapters.link.settings import LinkSettings
from enginehouse.adapters.logs import LogSettings
from enginehouse.core.kv.settings import KvSettings
from enginehouse.core.membership.settings import MembershipSettings
from enginehouse.core.output.selection import FormatSettings
from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.policy import RoutingSettings
from enginehouse.http.server import HttpSettings
from enginehouse.service.generate import RequestSettings
from enginehouse.settings.engines import FleetSettings, SourceSettings, TopologyName
from enginehouse.settings.plan import moot, plan
from enginehouse.settings.problems import missing_files, problems, tls_files_problems, token_file_problems
from enginehouse.settings.sources import Sources, unknown_variables
from enginehouse.settings.table import Row, flat, rows

__all__ = ["InvalidSettings", "Settings", "fill", "missing_files", "moot", "plan", "setting_rows", "unknown"]

_KUBE = (
    "backoff_limit",
    "connect_timeout",
    "page_size",
    "request_timeout",
    "resync_interval",
    "watch_idle_limit",
    "watch_timeout",
)


class InvalidSettings(cyclopts.CycloptsError):
    """Settings that contradict each other or cannot work; one line for each problem."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(msg="\n".join(found))
        self.found = found


@dataclass(frozen=True)
class Settings:
    """General."""

    config: Path | None = None
    """YAML file with settings: the flags' names without dashes in front (`drain-timeout: 60`), lists where a flag may
    be repeated. Flags and environment variables come before it."""
    sources: Annotated[SourceSettings, flat()] = field(default_factory=SourceSettings)
    engines_file: Annotated[EnginesFileSettings, flat("engines-file")] = field(default_factory=EnginesFileSettings)
    kube: Annotated[KubeSettings, flat("kube", *_KUBE)] = field(default_factory=KubeSettings)
    fleet: Annotated[FleetSettings, flat()] = field(default_factory=FleetSettings)
    formats: Annotated[FormatSettings, flat()] = field(default_factory=FormatSettings)
    http: Annotated[HttpSettings, flat()] = field(default_factory=HttpSettings)
    routing: Annotated[RoutingSettings, flat()] = field(default_factory=RoutingSettings)
    handover: Annotated[HandoverSettings, flat()] = field(default_factory=HandoverSettings)
    requests: Annotated[RequestSettings, flat()] = field(default_factory=RequestSettings)
    membership: Annotated[MembershipSettings, flat()] = field(default_factory=MembershipSettings)
    probe: Annotated[ProbeSettings, flat()] = field(default_factory=ProbeSettings)
    link: Annotated[LinkSettings, flat("link")] = field(default_factory=LinkSettings)
    kv_sources: Annotated[KvSourceSettings, flat()] = field(default_factory=KvSourceSettings)
    kv: Annotated[KvSettings, flat()] = field(default_factory=KvSettings)
    kv_events: Annotated[KvEventSettings, flat("kv-events")] = field(default_factory=KvEventSettings)
    logs: Annotated[LogSettings, flat()] = field(default_factory=LogSettings)

    @property
    def topology(self) -> TopologyName:
        """As told; prefill pods settle it before the first engine could: vLLM's cannot say that it only decodes."""
        named = self.fleet.topology
        return "disaggregated" if named == "auto" and self.sources.prefill_pods is not None else named

    def validate(self) -> None:
        """Raise InvalidSettings unless the settings make sense together. Opens nothing."""
        if found := problems(self):
            raise InvalidSettings(found)

    def check_files(self) -> None:
        """Raise InvalidSettings unless the files that the settings name for engine connections can be used."""
        if found := [*tls_files_problems(self), *token_file_problems(self)]:
            raise InvalidSettings(found)


def setting_rows() -> tuple[Row, ...]:
    """Every setting, in the order of the command line."""
    return tuple(rows(Settings))


def fill(app: cyclopts.App, commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> list[str]:
    """Fill in what the command line left open: the environment, then the file. Returns what is wrong with the file."""
    return Sources(setting_rows())(app, commands, arguments)


def unknown(environ: dict[str, str]) -> list[str]:
    """Sentences on environment variables that look like settings and are none."""
    return unknown_variables(environ, setting_rows())
