"""Where values come from besides the command line: environment variables, then the file that `--config` names.

A value that an earlier source gave stands. Each source is checked as strictly as the command line: a key that is not a
setting, a value of another type, a file that cannot be read stop the start and say where they stand.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cyclopts
import yaml
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict, Env

from enginehouse.settings.table import ENV_PREFIX, Row

_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$")
_LINK_VALUE = re.compile(r"^(tcp|udp|sctp)://")


class BadSource(cyclopts.CycloptsError):
    """A source cannot be used; the text says where, why, and what would be right."""


class Sources:
    """A cyclopts configuration source: the environment, then the file, for the settings of one command."""

    def __init__(self, rows: Iterable[Row], prefix: str = ENV_PREFIX) -> None:
        self._rows = {row.key: row for row in rows}
        self._prefix = prefix

    def __call__(self, app: cyclopts.App, commands: tuple[str, ...], arguments: ArgumentCollection) -> list[str]:
        """Fill in the arguments. Returns what is wrong with keys of the file; raises BadSource if all of it is."""
        drop_service_links(os.environ, self._prefix)
        Env(self._prefix, command=False)(app, commands, arguments)
        chosen = next((argument.tokens for argument in arguments if argument.name == "--config"), None)
        if not chosen:
            return []
        values, problems = read_file(Path(chosen[0].value), self._rows)
        Dict(values, source=chosen[0].value, use_commands_as_keys=False)(app, commands, arguments)
        return problems


def read_file(path: Path, rows: Mapping[str, Row]) -> tuple[dict[str, Any], list[str]]:
    """The file's keys and values, and a sentence for each that cannot be used. Raises BadSource."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except OSError as error:
        raise BadSource(msg=f"--config {path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise BadSource(msg=f"--config {path}: is not YAML: {error}") from None
    if values is None:
        return {}, []
    if not isinstance(values, dict) or not isinstance(root, yaml.MappingNode):
        raise BadSource(msg=f"--config {path}: must be a mapping of settings, such as `port: 8000`")
    problems = [*_twice(root)]
    good: dict[str, Any] = {}
    for key, value in values.items():
        if key not in rows or key == "config":
            problems.append(f"unknown key {key!r}{_meant(str(key), rows)}")
        elif isinstance(value, dict) or (isinstance(value, list) and not rows[key].many):
            problems.append(f"{key}: {value!r} is not a {rows[key].kind}")
        elif value is not None:
            good[key] = value
    return good, [f"--config {path}: {problem}" for problem in problems]


def _twice(root: yaml.MappingNode) -> Iterator[str]:
    """YAML would let the last one win without a word."""
    lines: dict[str, int] = {}
    for node, _ in root.value:
        if isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            if node.value in lines:
                yield f"key {node.value!r} is given twice, in line {lines[node.value]} and in line {line}"
            lines[node.value] = line


def drop_service_links(environ: dict[str, str] | os._Environ[str], prefix: str) -> None:
    """Remove what Kubernetes puts there for Services whose names begin as ours do, such as `ENGINEHOUSE_PORT=tcp://…`."""
    for name, value in list(environ.items()):
        if name.startswith(prefix) and (_LINK_VALUE.match(value) or _SERVICE_LINK.search(name)):
            del environ[name]


def unknown_variables(environ: Mapping[str, str], rows: Iterable[Row]) -> list[str]:
    """Sentences on variables that look like settings and are none. They stop nothing: others may use the prefix."""
    known = {row.variable for row in rows}
    return [
        f"{name} is not a setting{_meant(name, known)}"
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX) and name not in known and not _SERVICE_LINK.search(name)
    ]


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.replace("_", "-") if name.islower() else name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "; docs/settings.md lists the settings"
