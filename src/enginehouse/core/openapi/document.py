"""The document, put together once."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec

from enginehouse.core.openapi.answers import ChatMessage, Error
from enginehouse.core.openapi.hand_made import ONE_OF, REFINED
from enginehouse.core.openapi.other_answers import MessageError
from enginehouse.core.openapi.paths import PATHS, Path
from enginehouse.core.responses.fields import ITEMS
from enginehouse.domain.errors import EngineCancelled, EnginehouseError

_REF: Final = "#/components/schemas/{name}"
_EVENT: Final = {
    "type": "object",
    "description": "Each event of the stream; its data is JSON, but for a last [DONE] on OpenAI's older paths.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
    "additionalProperties": False,
}
_RETRY: Final = {
    "Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 1}}
}


def document(version: str, reasoning_field: str = "reasoning_content", *, client_priority: bool = False) -> bytes:
    """JSON of an OpenAPI 3.1 document.

    reasoning_field: where clients look for the model's thinking. client_priority: they may say how urgent they are.
    """
    shapes = [*dict.fromkeys(shape for path in PATHS for shape in _shapes(path)), Error, MessageError, *ITEMS.values()]
    _, schemas = msgspec.json.schema_components(shapes, ref_template=_REF)
    for (name, field), schema in REFINED.items():
        place = schemas[name]["properties"]
        assert field in place
        place[field] = schema
    for body in {body for path in PATHS for body in path.body}:
        schemas[body.__name__]["additionalProperties"] = False
        if not client_priority:
            schemas[body.__name__]["properties"].pop("priority", None)
    for name, fields in ONE_OF.items():
        schemas[name]["oneOf"] = [{"required": [field]} for field in fields]
    message = schemas[ChatMessage.__name__]["properties"]
    message[reasoning_field] = message.pop("reasoning_content")
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "enginehouse",
                "version": version,
                "description": "Inference over HTTP, as clients of OpenAI's and Anthropic's APIs know it.",
            },
            "paths": {path.path: _path(path) for path in PATHS},
            "components": {"schemas": schemas},
        }
    )


def _shapes(path: Path) -> Iterator[type[msgspec.Struct]]:
    yield from path.body
    if isinstance(path.answer, type):
        yield path.answer


def _path(path: Path) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": path.summary, "responses": dict(_responses(path))}
    if "{" in path.path:
        operation["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        ]
    if path.body:
        bodies = [_ref(body) for body in path.body]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"post" if path.body else "get": operation}


def _responses(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    content = _content(path)
    yield "200", {"description": path.summary, "content": content}
    if path.not_ready:
        yield "503", {"description": "Not ready.", "content": content}
    elif path.body:
        error = _ref(Error if path.form == "openai" else MessageError)
        for status, words in sorted(_failures().items()):
            headers = {"headers": _RETRY} if status in (429, 503) else {}
            yield str(status), {"description": words, "content": {"application/json": {"schema": error}}, **headers}
    elif path.found:
        yield "404", {"description": "There is none.", "content": {"application/json": {"schema": _ref(Error)}}}


def _content(path: Path) -> dict[str, Any]:
    if path.answer is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    schema = path.answer if isinstance(path.answer, dict) else _ref(path.answer)
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if path.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    return content


def _ref(shape: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=shape.__name__)}


def _failures() -> dict[int, str]:
    """What every POST may end with, by status: the errors that there are, by their codes."""
    codes: dict[int, set[str]] = {}
    todo = [EnginehouseError]
    while todo:
        kind = todo.pop()
        todo.extend(kind.__subclasses__())
        if kind is not EngineCancelled and kind is not EnginehouseError:
            codes.setdefault(kind.status, set()).update([kind.default_code] if kind.default_code else [])
    return {
        status: f"{HTTPStatus(status).phrase}{': ' if found else ''}{', '.join(sorted(found))}"
        for status, found in codes.items()
    }
