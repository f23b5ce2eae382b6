"""What a mock engine says instead of its words: a text that it was told to, or one that fits what it is held to."""

from __future__ import annotations

import json
from collections.abc import Sequence

from enginehouse.domain.constraint import Constraint, JsonObject, JsonSchema, OneOf
from enginehouse.mock import text
from enginehouse.mock.instance import Unsayable, instance_text
from enginehouse.mock.settings import Faults
from enginehouse.mock.vocabulary import Vocabulary


def said(faults: Faults, vocabulary: Vocabulary, prompt: Sequence[int], constraint: Constraint | None) -> list[int]:
    """Token ids, after which the answer ends; none: it says its words. Raises Unsayable.

    What it was told goes before what it is held to, so that a test can have it say anything.
    """
    told = _told(faults, vocabulary, prompt)
    if not told and constraint is not None:
        told = _fitting(constraint)
    return text.encode(vocabulary.folder, told) if told else []


def _told(faults: Faults, vocabulary: Vocabulary, prompt: Sequence[int]) -> str:
    if faults.say_to:
        asked = text.decode(vocabulary.folder, prompt)
        for part, answer in json.loads(faults.say_to).items():
            if part in asked:
                return str(answer)
    return faults.say


def _fitting(constraint: Constraint) -> str:
    match constraint:
        case JsonSchema(schema):
            return instance_text(schema)
        case JsonObject():
            return "{}"
        case OneOf(choices):
            return choices[0]
        case _:
            raise Unsayable(f"a mock engine makes no text that fits a {type(constraint).__name__}: tell it what to say")
