"""Nulls in the parts of a body: each is the same as leaving its field out, whether the field is known or not.

Libraries send back what they got with all the fields that they know, null where there was nothing, and each version
knows more of them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect


def without_nulls(value: Any, struct: type[msgspec.Struct]) -> Any:
    """The value without those that its declaration does not need. What is of no declared form stays as it is."""
    return _cleared(value, inspect.type_info(struct))


def _cleared(value: Any, info: inspect.Type) -> Any:
    if isinstance(info, inspect.Metadata):
        return _cleared(value, info.type)
    if isinstance(info, inspect.UnionType):
        fitting = next((one for one in info.types if _fits(value, one)), None)
        return value if fitting is None else _cleared(value, fitting)
    if isinstance(info, inspect.ListType) and isinstance(value, list):
        return [_cleared(item, info.item_type) for item in value]
    if isinstance(info, inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field for field in info.fields}
        return {
            name: _cleared(item, fields[name].type) if name in fields else item
            for name, item in value.items()
            if item is not None or name == info.tag_field or (name in fields and fields[name].required)
        }
    return value


def _fits(value: Any, info: inspect.Type) -> bool:
    if isinstance(info, inspect.Metadata):
        return _fits(value, info.type)
    if isinstance(value, list):
        return isinstance(info, inspect.ListType)
    return (
        isinstance(value, dict)
        and isinstance(info, inspect.StructType)
        and (info.tag_field is None or value.get(info.tag_field) == info.tag)
    )
