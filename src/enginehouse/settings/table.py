"""Every setting of a settings class as a row: its names, type, default and meaning, read from the one declaration.

Flags, environment variables, keys of the file and `docs/settings.md` all come from here, so they cannot disagree.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import Parameter, default_name_transform

ENV_PREFIX = "ENGINEHOUSE_"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting."""

    field: str
    key: str
    """Its key in the file."""
    group: type
    """The dataclass that declares it."""
    path: tuple[str, ...]
    """Attributes that lead to it from the outermost settings object."""
    hint: Any
    default: Any
    meaning: str

    @property
    def flag(self) -> str:
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.key.replace("-", "_").upper()

    @property
    def many(self) -> bool:
        """Takes a list."""
        return get_origin(_bare(self.hint)) in (tuple, list)

    def of(self, settings: object) -> Any:
        """Its value in the outermost settings object."""
        value = settings
        for name in self.path:
            value = getattr(value, name)
        return value

    @property
    def kind(self) -> str:
        """The type in words."""
        return _words(self.hint)

    @property
    def shown_default(self) -> str:
        """The default as one would write it; empty: none."""
        value = self.default.value if isinstance(self.default, Enum) else self.default
        if value is None or value == () or value == "":
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)


def flat(prefix: str = "", *names: str) -> Parameter:
    """For a settings class inside another: its settings stand in its place, not under it.

    The names of its fields, or of those named here, get the prefix: `connect_timeout` says too little among all others.
    """

    def transform(name: str) -> str:
        key = default_name_transform(name)
        return f"{prefix}-{key}" if prefix and (not names or name in names) else key

    return Parameter(name="*", name_transform=transform)


def rows(
    settings: type, path: tuple[str, ...] = (), transform: Callable[[str], str] = default_name_transform
) -> Iterator[Row]:
    """The settings of a dataclass, those of the dataclasses inside it in place of these."""
    hints = get_type_hints(settings, include_extras=True)
    meanings = _meanings(settings)
    for field in fields(settings):
        hint, *extras = (
            get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else [hints[field.name]]
        )
        here = (*path, field.name)
        if isinstance(hint, type) and is_dataclass(hint):
            (parameter,) = extras
            yield from rows(hint, here, parameter.name_transform)
            continue
        default = field.default if field.default is not MISSING else None
        if field.default_factory is not MISSING:
            default = field.default_factory()
        yield Row(field.name, transform(field.name), settings, here, hint, default, meanings.get(field.name, ""))


@cache
def _meanings(settings: type) -> dict[str, str]:
    """The string that follows each field of a class and of its bases."""
    found: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        if not is_dataclass(cls):
            continue
        (body,) = (node.body for node in ast.walk(_source(cls)) if isinstance(node, ast.ClassDef))
        for node, after in pairwise(body):
            match node, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    found[name] = " ".join(text.split())
    return found


def _source(cls: type) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(cls)))


def _bare(hint: Any) -> Any:
    """The hint without `None`."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [part for part in get_args(hint) if part is not type(None)]
        return inner[0] if len(inner) == 1 else hint
    return hint


def _words(hint: Any) -> str:
    bare = _bare(hint)
    if get_origin(bare) is Literal:
        return ", ".join(map(str, get_args(bare)))
    if get_origin(bare) in (tuple, list):
        return f"list of {_words(get_args(bare)[0])}"
    if isinstance(bare, type) and issubclass(bare, Enum):
        return ", ".join(str(member.value) for member in bare)
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
    return names.get(bare, str(bare))
