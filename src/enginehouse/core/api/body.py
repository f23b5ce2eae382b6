"""Bodies read by a declaration of their fields: a struct says what is right, and errors say it in words.

The same declarations make the schemas of the OpenAPI document. What a struct does not have is refused by name, but for
values that ask for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from enginehouse.core.openai.bounds import MAX_FIELD_BYTES, MAX_KEYS, MAX_VALUES, few_strings, plainly_few, values_in
from enginehouse.core.openai.nulls import without_nulls
from enginehouse.core.openai.prompts import read_many_ids, read_prompts
from enginehouse.core.openai.refusals import kind, not_json, printable, shown, too_much
from enginehouse.domain.errors import InvalidRequest

S = TypeVar("S", bound=msgspec.Struct)
_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_LONGEST_HARMLESS: Final = 10_000
"""Bytes of a value that is compared with the harmless ones."""


@dataclass(frozen=True)
class Body(Generic[S]):
    """What a path takes."""

    struct: type[S]
    harmless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Parameters that are known and not served, each with the values that ask for nothing; null always does."""
    large: frozenset[str] = frozenset()
    """Fields that may be as large as the body may."""
    ids: frozenset[str] = frozenset()
    """Large fields that may be long lists of token ids; those become tuples of them, as read_prompts takes them."""
    ignored: frozenset[str] = frozenset()
    """Fields that are taken, whatever they hold, and without effect."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why some of the harmless ones are not served, and what to do instead."""

    def read(self, body: bytes) -> S:
        """Raises InvalidRequest, which names the field, what it is and what would be right."""
        if not body.strip():
            raise InvalidRequest("the body is empty; it must be a JSON object", code="invalid_json")
        try:
            bounded = plainly_few(body)
            if not bounded and not few_strings(body):
                raise InvalidRequest(f"the body has more than {MAX_VALUES} texts and keys, which is the limit")
            raw = _object(body)
            if len(raw) > MAX_KEYS:
                raise InvalidRequest(f"the body has {len(raw)} keys; at most {MAX_KEYS} are taken")
            self._settle(raw)
            values = {name: self._value(name, value, bounded) for name, value in raw.items()}
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise not_json(error) from None
        return convert({name: value for name, value in values.items() if value is not None}, self.struct)

    def _settle(self, raw: dict[str, msgspec.Raw]) -> None:
        for name in raw.keys() - set(_names(self.struct)):
            value = raw.pop(name)
            if name not in self.ignored and not self._asks_nothing(name, value):
                raise self._refused(name)

    def _asks_nothing(self, name: str, raw: msgspec.Raw) -> bool:
        if len(memoryview(raw)) > _LONGEST_HARMLESS:
            return False
        value = msgspec.json.decode(raw)
        return value is None or any(
            value == harmless and type(value) is type(harmless) for harmless in self.harmless.get(name, ())
        )

    def _refused(self, name: str) -> InvalidRequest:
        text = printable(name)
        if name not in self.harmless:
            return InvalidRequest(f"'{text}' is not a known parameter", param=text, code="unknown_parameter")
        allowed = ", ".join(msgspec.json.encode(value).decode() for value in self.harmless[name])
        right = f"leave it out or give {allowed}" if allowed else "leave it out"
        why = f": {self.reasons[name]}" if name in self.reasons else ""
        return InvalidRequest(f"'{text}' is not supported{why}; {right}", param=text, code="unsupported_parameter")

    def _value(self, name: str, raw: msgspec.Raw, bounded: bool) -> Any:
        size = len(memoryview(raw))
        if name not in self.large and size > MAX_FIELD_BYTES:
            raise too_much(name, f"has {size} bytes; at most {MAX_FIELD_BYTES} are taken")
        if not bounded:
            data = bytes(raw)
            if name in self.ids and data.startswith(b"[") and b'"' not in data:
                return _ids(data, name)
            if values_in(data) > MAX_VALUES:
                raise too_much(name, f"has more than {MAX_VALUES} values, which is the limit")
        return msgspec.json.decode(raw)


def convert(value: Any, struct: type[S], where: str = "") -> S:
    """A value of this shape; where: the name of its place in the body. Raises InvalidRequest."""
    try:
        try:
            return msgspec.convert(value, struct)
        except msgspec.ValidationError:  # most bodies have no nulls that would be in the way
            value = without_nulls(value, struct)
            return msgspec.convert(value, struct)
    except msgspec.ValidationError as error:
        raise _wrong(str(error), value, struct, where) from None
    except RecursionError as error:
        raise not_json(error) from None


def renamed(error: InvalidRequest, *names: tuple[str, str]) -> InvalidRequest:
    """The same error in the words of an API that calls some places otherwise: pairs of (theirs, ours)."""
    message, param = error.message, error.param or ""
    for theirs, ours in names:
        message, param = message.replace(theirs, ours), param.replace(theirs, ours)
    return type(error)(message, param=param or None, code=error.code)


def inputs(value: Any, name: str) -> tuple[str | tuple[int, ...], ...]:
    """Texts or lists of token ids, at least one, in a field of another name than `prompt`. Raises InvalidRequest."""
    try:
        return read_prompts(value)
    except InvalidRequest as error:
        raise _renamed_prompt(error, name) from None


def _ids(data: bytes, name: str) -> tuple[tuple[int, ...], ...]:
    try:
        return read_many_ids(data)
    except InvalidRequest as error:
        raise _renamed_prompt(error, name) from None


def _renamed_prompt(error: InvalidRequest, name: str) -> InvalidRequest:
    return InvalidRequest(error.message.replace("'prompt", f"'{name}"), param=name, code=error.code)


def _object(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _top(body)
    except msgspec.ValidationError:  # JSON, as far as it was read, but no object
        what = kind(msgspec.json.decode(body) if plainly_few(body) else [])
        raise InvalidRequest(f"the body is {what}; it must be a JSON object", code="invalid_json") from None


def _wrong(text: str, value: Any, struct: type[msgspec.Struct], where: str) -> InvalidRequest:
    what, _, tail = text.partition(" - at `$")
    steps: list[str | int] = []
    for name, index in _STEP.findall(tail.removesuffix("`")):
        steps.append(name or (int(index) if index.isdigit() else index))
    if what.startswith(("Object missing required field", "Object contains unknown field")):
        steps.append(what.split("`")[1])
    path = _path(where, steps)
    if what.startswith("Object contains unknown field"):
        return InvalidRequest(f"'{path}' is not a known parameter", param=path, code="unknown_parameter")
    right = words(_right(inspect.type_info(struct), value, steps))
    if what.startswith("Object missing required field"):
        return InvalidRequest(f"'{path}' is missing; it must be {right}", param=path)
    if "..." in steps:  # the error does not say which
        path = _path(where, steps[: steps.index("...")])
        return InvalidRequest(f"'{path}' has a value that is none; each must be {right}", param=path)
    for step in steps:
        value = value[step]
    code = None
    if what.startswith("Invalid ") and isinstance(value, str):
        got, code = f"'{printable(value)}'", "unsupported_value"
    else:
        got = shown(value)
    return InvalidRequest(f"'{path}' is {got}; it must be {right}", param=path, code=code)


def _path(where: str, steps: Iterable[str | int]) -> str:
    path = where
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) or step == "..." else f".{printable(step)}"
    return path.removeprefix(".")


def _right(info: inspect.Type, value: Any, steps: list[str | int]) -> list[inspect.Type]:
    """The types that the place may have to which the steps lead."""
    if isinstance(info, inspect.Metadata):
        return _right(info.type, value, steps)
    if isinstance(info, inspect.UnionType):
        return [right for one in info.types for right in _right(one, value, steps)]
    if not steps:
        return [info]
    step, rest = steps[0], steps[1:]
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        if step == info.tag_field:
            return [inspect.LiteralType(values=(info.tag,))]
        if info.tag_field is not None and value.get(info.tag_field) != info.tag:
            return []
        return [t for f in info.fields if f.encode_name == step for t in _right(f.type, value.get(step), rest)]
    if isinstance(info, inspect.ListType) and isinstance(value, list) and isinstance(step, int):
        return _right(info.item_type, value[step], rest)
    if isinstance(info, inspect.DictType) and isinstance(value, dict):
        return _right(info.value_type, None, rest)
    return []


def words(types: Iterable[inspect.Type]) -> str:
    """What would be right, for a person."""
    literals: list[Any] = []
    told: list[str] = []
    for info in types:
        match info:
            case inspect.LiteralType(values):
                literals += values
            case inspect.NoneType():
                pass
            case inspect.BoolType():
                told.append("true or false")
            case inspect.IntType(ge=low, le=high):
                told.append("a whole number" + _range(low, high))
            case inspect.FloatType(ge=low, le=high):
                told.append("a number" + _range(low, high))
            case inspect.StrType(min_length=low, max_length=high):
                told.append("a string" + _size(low, high, "characters"))
            case inspect.ListType(max_length=0):
                told.append("an empty list")
            case inspect.ListType(min_length=low, max_length=high):
                told.append("a list" + _size(low, high, "items"))
            case _:
                told.append("an object")
    if literals:
        told.insert(0, ("one of " if len(literals) > 1 else "") + ", ".join(map(_literal, literals)))
    return " or ".join(dict.fromkeys(told)) or "null"


def _literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else msgspec.json.encode(value).decode()


def _range(low: float | None, high: float | None) -> str:
    from_, to = "" if low is None else f" from {low:.10g}", "" if high is None else f" to {high:.10g}"
    return from_ + (to or (" on" if from_ else ""))


def _size(low: int | None, high: int | None, of: str) -> str:
    if low is None and high is None:
        return ""
    if low and high:
        return f" of {low} to {high} {of}"
    return f" of at most {high} {of}" if high else f" of at least {low} {of}"


@cache
def _names(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return struct.__struct_encode_fields__
