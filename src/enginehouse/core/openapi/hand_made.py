"""Schemas of the fields that are read by hand, because their errors name places that a declaration cannot."""

from __future__ import annotations

from typing import Any, Final

from enginehouse.core.openai.bounds import MAX_MESSAGES, MAX_PROMPTS
from enginehouse.core.openai.fields import TOKEN_ID_MAX
from enginehouse.core.openai.messages import ROLES
from enginehouse.core.responses.fields import ITEMS

_ANY_OBJECT: Final = {"type": "object"}
_NULL: Final = {"type": "null"}
_STRING: Final = {"type": "string"}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _or_null(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*schemas, _NULL]}


_PARTS: Final = {"type": "array", "items": _object(("type", "text"), type={"const": "text"}, text=_STRING)}
_CALL: Final = _object(
    ("function",),
    id=_STRING,
    type={"const": "function"},
    function=_object(("name",), name=_STRING, arguments={"anyOf": [_STRING, _ANY_OBJECT]}),
)
_CONTENT: Final = {"anyOf": [_STRING, _PARTS]}
_MESSAGES: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": {
        "anyOf": [
            _object(
                ("role",),
                role={"const": "assistant"},
                content=_or_null(_CONTENT),
                name=_STRING,
                tool_calls={"type": "array", "items": _CALL},
                reasoning_content=_STRING,
                reasoning=_STRING,
            ),
            _object(
                ("role", "content"),
                role={"enum": [role for role in ROLES if role != "assistant"]},
                content=_CONTENT,
                name=_STRING,
                tool_call_id=_STRING,
            ),
        ]
    },
}
_NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}
_TOOL: Final = _object(
    ("function",),
    type={"const": "function"},
    function=_object(("name",), name=_NAME, description=_STRING, parameters=_ANY_OBJECT, strict={"type": "boolean"}),
)
_NAMED: Final = _object(("type", "function"), type={"const": "function"}, function=_object(("name",), name=_NAME))
_ALLOWED: Final = _object(
    ("type", "allowed_tools"),
    type={"const": "allowed_tools"},
    allowed_tools=_object(
        ("mode", "tools"),
        mode={"enum": ["auto", "required"]},
        tools={"type": "array", "minItems": 1, "items": _NAMED},
    ),
)
_CHOICE: Final = _or_null({"enum": ["none", "auto", "required"]}, _NAMED, _ALLOWED)
_TOOLS: Final = _or_null({"type": "array", "items": _TOOL})
_SCHEMA: Final = _or_null(_ANY_OBJECT, {**_STRING, "description": "The same as JSON text."})
_TEXT: Final = _or_null({"type": "string", "minLength": 1})
_FORMAT: Final = _or_null(
    _object(("type",), type={"enum": ["text", "json_object"]}),
    _object(
        ("type", "json_schema"),
        type={"const": "json_schema"},
        json_schema=_object(
            ("name", "schema"),
            name={"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
            description=_STRING,
            schema=_ANY_OBJECT,
            strict={"type": "boolean"},
        ),
    ),
    {**_object(("type",), type={"const": "structural_tag"}), "additionalProperties": True},
)
_IDS: Final = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": TOKEN_ID_MAX}}
_PROMPT: Final = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        _IDS,
        *(
            {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": of}
            for of in ({"type": "string", "minLength": 1}, _IDS)
        ),
    ]
}
_BOTH: Final = {
    "logit_bias": _or_null({"type": "object", "additionalProperties": {"type": "number"}}),
    "response_format": _FORMAT,
    "structured_outputs": _or_null(_ANY_OBJECT),
    **dict.fromkeys(("guided_json", "json_schema"), _SCHEMA),
    **dict.fromkeys(("guided_regex", "regex", "guided_grammar", "ebnf"), _TEXT),
    "guided_choice": _or_null({"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}),
}

REFINED: Final[dict[tuple[str, str], dict[str, Any]]] = {
    **{(form, field): schema for form in ("ChatFields", "CompletionFields") for field, schema in _BOTH.items()},
    ("ChatFields", "messages"): _MESSAGES,
    ("ChatFields", "tools"): _TOOLS,
    ("ChatFields", "tool_choice"): _CHOICE,
    ("CompletionFields", "prompt"): _PROMPT,
    ("EmbeddingFields", "input"): _PROMPT,
    ("TokenizeFields", "prompt"): _STRING,
    ("TokenizeFields", "messages"): _MESSAGES,
    ("TokenizeFields", "tools"): _TOOLS,
    ("ResponseFields", "input"): {
        "anyOf": [
            _STRING,
            {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_MESSAGES,
                "items": {"anyOf": [{"$ref": f"#/components/schemas/{item.__name__}"} for item in ITEMS.values()]},
            },
        ]
    },
}
"""By the name of the declaration and the field."""

ONE_OF: Final = {"TokenizeFields": ("prompt", "messages")}
"""By the name of the declaration: fields of which exactly one must be there."""
