"""Decides whether a text is a label selector that the API server would take. A bad one would else be asked for ever."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_WORD = r"[^\s=!<>(),]+"
_REQUIREMENT = re.compile(
    rf"""(?P<key>{_WORD})
    (?: \s*(?:==|=|!=)\s*(?P<value>{_WORD})?
      | \s*[<>]\s*(?P<number>{_WORD})
      | \s+(?:in|notin)\s*\((?P<values>[^()]*)\)
    )?
    | !\s*(?P<absent>{_WORD})""",
    re.VERBOSE,
)


def selector_fault(selector: str) -> str | None:
    """What is wrong with a label selector, worded to follow it in a sentence; None: nothing."""
    if not selector.strip():
        return "is empty and would select every pod"
    if selector.count("(") != selector.count(")"):
        return "has unbalanced parentheses"
    for part in re.split(r",(?![^(]*\))", selector):
        if fault := _requirement_fault(part.strip()):
            return fault
    return None


def _requirement_fault(text: str) -> str | None:
    found = _REQUIREMENT.fullmatch(text)
    if found is None:
        return f"has a part that is no requirement: {text!r}"
    if fault := _key_fault(found["key"] or found["absent"]):
        return fault
    if found["number"] is not None and not re.fullmatch(r"[+-]?[0-9]+", found["number"]):
        return f"compares with {found['number']!r}, which is no whole number"
    values = [found["value"] or ""]
    if found["values"] is not None:
        values = [value.strip() for value in found["values"].split(",")]
        if values == [""]:
            return f"has an empty set: {text!r}"
    for value in values:
        if value and not _NAME.fullmatch(value):
            return f"has {value!r}, which no label can have as its value: {_RIGHT}"
    return None


def _key_fault(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name):
        return f"has {key!r}, which is no label's name: {_RIGHT}"
    if slash and (len(prefix) > 253 or not _PREFIX.fullmatch(prefix)):
        return f"has {key!r}, whose part before the slash is no DNS name"
    return None


_RIGHT = "at most 63 letters, digits, '-', '_', '.', with a letter or digit at both ends"
