"""Decides what a list of engines says: the content of an engines file, or targets given one by one.

A list is taken whole or not at all: one bad entry refuses it, and the reason says where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from enginehouse.domain.engine import OPTIONS, InvalidTarget, Target
from enginehouse.domain.feed import Wanted

_KEYS = ("url", *OPTIONS, "name")
_RIGHT = f"expected an address (grpc://HOST:PORT) or a map with url and perhaps {', '.join(_KEYS[1:])}"


@dataclass(frozen=True, slots=True)
class BadList:
    """The list cannot be used; the text says where it is wrong, and how."""

    reason: str


class _Bad(Exception):
    def __init__(self, node: yaml.Node, entry: int | None, text: str) -> None:
        mark = node.start_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}"
        super().__init__(f"{place}: {text}" if entry is None else f"{place} (entry {entry}): {text}")


def engine(target: Target, name: str | None = None) -> Wanted:
    """Return what a feed says of an engine that simply is there. Changed hints make another incarnation."""
    hints = f"role={target.role or '-'}, protocol={target.protocol or '-'}"
    if target.kv_events_port is not None:
        hints += f", kv={target.kv_events_port}/{target.kv_replay_port or '-'}"
    if target.bootstrap_port is not None or target.bootstrap_host is not None:
        hints += f", met={target.bootstrap_host or '-'}:{target.bootstrap_port or '-'}"
    if target.group is not None:
        hints += f", group={target.group}"
    return Wanted(
        engine_id=target.url,
        owner=target.url,
        name=name or target.url,
        target=target,
        generation=f"{target.url} {hints}",
        eligible=True,
    )


def engines(targets: Sequence[Target]) -> tuple[Wanted, ...]:
    """Return the engines of a fixed list. Raises InvalidTarget if one is there twice."""
    wanted = tuple(engine(target) for target in targets)
    seen: set[str] = set()
    for one in wanted:
        if one.engine_id in seen:
            raise InvalidTarget(f"{one.engine_id} is given twice")
        seen.add(one.engine_id)
    return wanted


def read_engine_list(content: bytes) -> tuple[Wanted, ...] | BadList:
    """Read the content of an engines file: a YAML list of addresses, or of maps with the keys of _KEYS."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return BadList(f"not UTF-8 at byte {error.start}")
    try:
        # Nodes, not values: they know their place, and nothing is constructed from them.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return _engines(root)
    except _Bad as error:
        return BadList(str(error))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        return BadList(f"{place}not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        return BadList(f"not YAML: {error}".splitlines()[0])
    except (ValueError, OverflowError):  # such as an escape beyond the last character there is
        return BadList("not YAML: a value in it cannot be")
    except RecursionError:
        return BadList("nested too deeply")


def _engines(root: yaml.Node | None) -> tuple[Wanted, ...] | BadList:
    if root is None:
        # More likely a file caught while it is written than the wish to have none.
        return BadList("line 1, column 1: empty; write [] for a list without engines")
    if not isinstance(root, yaml.SequenceNode):
        raise _Bad(root, None, f"not a list; {_RIGHT}, each as an item that begins with '- '")
    found: dict[str, int] = {}
    wanted: list[Wanted] = []
    for number, node in enumerate(root.value, start=1):
        one = _entry(node, number)
        if one.engine_id in found:
            raise _Bad(node, number, f"{one.engine_id} is already entry {found[one.engine_id]}")
        found[one.engine_id] = number
        wanted.append(one)
    return tuple(wanted)


def _entry(node: yaml.Node, number: int) -> Wanted:
    if isinstance(node, yaml.ScalarNode) and node.value:
        return engine(_target(node, number))
    if not isinstance(node, yaml.MappingNode):
        raise _Bad(node, number, _RIGHT)
    fields: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else None
        if name not in _KEYS:
            raise _Bad(
                key, number, f"unknown key {key.value if name is not None else '?'!r}; known: {', '.join(_KEYS)}"
            )
        if name in fields:
            raise _Bad(key, number, f"key {name!r} is given twice")
        if not isinstance(value, yaml.ScalarNode) or not value.value:
            raise _Bad(value, number, f"{name} must be a text")
        fields[name] = value
    if "url" not in fields:
        raise _Bad(node, number, "url is missing")
    target = _hints(_target(fields["url"], number), fields, number)
    return engine(target, fields["name"].value if "name" in fields else None)


def _target(node: yaml.Node, number: int) -> Target:
    try:
        return Target.parse(node.value)
    except InvalidTarget as error:
        raise _Bad(node, number, str(error)) from error


def _hints(target: Target, fields: dict[str, yaml.Node], number: int) -> Target:
    """The target with what the map says besides its url, which may say the same but nothing else."""
    told = {key: fields[key].value for key in OPTIONS if key in fields}
    for key, value in told.items():
        try:
            # Each alone first, to know where it stands; what belongs together is looked at in the end.
            alone = Target(target.host, target.port, kv_events_port=1).told({key: value})
        except InvalidTarget as error:
            raise _Bad(fields[key], number, str(error)) from error
        name = key.replace("-", "_")
        said, here = getattr(target, name), getattr(alone, name)
        if said not in (None, here):
            shown = here if isinstance(here, int) else repr(value)
            raise _Bad(fields[key], number, f"{key} {shown} contradicts the url, which says {said}")
    try:
        return target.told(told)
    except InvalidTarget as error:  # only a port of these wants another
        raise _Bad(fields.get("kv-replay-port", fields["url"]), number, str(error)) from error
