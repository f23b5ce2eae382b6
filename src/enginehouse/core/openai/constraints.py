"""What a client says of the form of its answer, in any of the spellings in use: at most one constraint comes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from enginehouse.core.openai.refusals import kind, printable, too_much
from enginehouse.core.openai.schema import check_schema, json_text
from enginehouse.domain.constraint import (
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
)
from enginehouse.domain.errors import InvalidRequest

MAX_CHOICES: Final = 2000
MAX_PATTERN: Final = 64 * 1024
"""Characters of a regular expression."""

_FORMATS: Final = ("text", "json_object", "json_schema", "structural_tag")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_constraint(asked: Mapping[str, Any]) -> tuple[Constraint | None, str]:
    """(the constraint, the field it comes of). asked: the values of those of CONSTRAINTS that were given.

    Raises InvalidRequest for a wrong value, and for two constraints in one request.
    """
    found: Constraint | None = None
    source = "response_format"
    for name, value in asked.items():
        constraint = _READERS[name](value, name)
        if constraint is None:
            continue
        if found is not None:
            raise InvalidRequest(f"'{name}' and '{source}' both say what the answer must be; give one only", param=name)
        found, source = constraint, name
    return found, source


def json_schema(schema: Any, where: str) -> JsonSchema:
    """A schema, given as an object, that is checked."""
    check_schema(schema, where)
    return JsonSchema(json_text(schema, where))


def _response_format(value: Any, where: str) -> Constraint | None:
    if not isinstance(value, dict):
        raise _wrong(where, f"is {kind(value)}; it must be an object, e.g. {{'type': 'json_object'}}")
    form = value.get("type")
    if form not in _FORMATS:
        problem = (
            "is missing" if form is None else f"is '{printable(form)}'" if isinstance(form, str) else f"is {kind(form)}"
        )
        raise _wrong(f"{where}.type", f"{problem}; it must be one of {', '.join(_FORMATS)}")
    if form == "structural_tag":
        return _structural_tag(value, where)
    _only(value, {"type", form} if form == "json_schema" else {"type"}, where)
    if form == "json_schema":
        return _named_schema(value.get("json_schema"), f"{where}.json_schema")
    return JsonObject() if form == "json_object" else None


def _named_schema(value: Any, where: str) -> JsonSchema:
    """`strict` changes nothing: the schema is always kept to."""
    if not isinstance(value, dict):
        problem = "is missing" if value is None else f"is {kind(value)}"
        raise _wrong(where, f"{problem}; it must be an object with 'name' and 'schema'")
    _only(value, {"name", "description", "schema", "strict"}, where)
    name = value.get("name")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        problem = "is missing" if name is None else "is not a name"
        raise _wrong(f"{where}.name", f"{problem}; it must be 1 to 64 letters, digits, '_' or '-'")
    for key, right, words in (("description", str, "a string"), ("strict", bool, "true or false")):
        if value.get(key) is not None and not isinstance(value[key], right):
            raise _wrong(f"{where}.{key}", f"is {kind(value[key])}; it must be {words}")
    if value.get("schema") is None:
        raise _wrong(f"{where}.schema", "is missing; it must be a JSON Schema, which is an object")
    return json_schema(value["schema"], f"{where}.schema")


def _structured_outputs(value: Any, where: str) -> Constraint | None:
    if not isinstance(value, dict):
        raise _wrong(where, f"is {kind(value)}; it must be an object, e.g. {{'regex': '...'}}")
    _only(value, set(_KINDS), where)
    given = [key for key in _KINDS if value.get(key) is not None and value[key] is not False]
    if len(given) != 1:
        raise _wrong(where, f"has {len(given)} constraints; it must have one of {', '.join(_KINDS)}")
    return _KINDS[given[0]](value[given[0]], f"{where}.{given[0]}")


def _schema(value: Any, where: str) -> Constraint:
    """An object, or JSON text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            raise _wrong(where, "is a string that is no JSON; it must be a JSON Schema") from None
    return json_schema(value, where)


def _object(value: Any, where: str) -> Constraint:
    if value is not True:
        raise _wrong(where, f"is {kind(value)}; it must be true or false")
    return JsonObject()


def _regex(value: Any, where: str) -> Constraint:
    text = _text(value, where, "a regular expression")
    if len(text) > MAX_PATTERN:
        raise too_much(where, f"has {len(text)} characters; at most {MAX_PATTERN} are taken")
    return Regex(text)


def _grammar(value: Any, where: str) -> Constraint:
    return Grammar(_text(value, where, "a grammar in EBNF"))


def _choice(value: Any, where: str) -> Constraint:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        shown = f"a list of {len(value)}" if isinstance(value, list) else kind(value)
        raise _wrong(where, f"is {shown}; it must be a list of 1 to {MAX_CHOICES} strings")
    return OneOf(tuple([_text(item, f"{where}[{at}]", "a choice") for at, item in enumerate(value)]))


def _structural_tag(value: Any, where: str) -> Constraint:
    """Only its outline is looked at: what stands in it is for the engine's grammar library."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            raise _wrong(where, "is a string that is no JSON; it must be a structural tag") from None
    whole = isinstance(value, dict) and (
        isinstance(value.get("format"), dict)
        or (isinstance(value.get("structures"), list) and isinstance(value.get("triggers"), list))
    )
    if not whole:
        raise _wrong(where, "is no structural tag; it must be an object with 'format', or 'structures' and 'triggers'")
    return StructuralTag(json_text({"type": "structural_tag"} | value, where))


def _text(value: Any, where: str, what: str) -> str:
    if not isinstance(value, str) or not value:
        shown = "an empty string" if value == "" else kind(value)
        raise _wrong(where, f"is {shown}; it must be {what}, which is a string")
    return value


def _only(value: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in value:
        if key not in known and value[key] is not None:
            place = f"{where}.{printable(key)}"
            raise InvalidRequest(f"'{place}' is not a known parameter", param=place, code="unknown_parameter")


def _wrong(where: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"'{where}' {problem}", param=where)


_Read = Callable[[Any, str], Constraint | None]
_KINDS: Final[dict[str, _Read]] = {
    "json": _schema,
    "json_object": _object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}
_READERS: Final[dict[str, _Read]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _schema,
    "regex": _regex,
    "ebnf": _grammar,
}
CONSTRAINTS: Final = tuple(_READERS)
"""The fields that may hold one: OpenAI's, then vLLM's, then SGLang's."""
