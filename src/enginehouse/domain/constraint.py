"""What the text of an answer must be: at most one of these in a request, enforced by the engine while it samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON of this schema, given as JSON text."""

    schema: str


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that matches as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """A sentence of this grammar, in EBNF as the engine's grammar library writes it."""

    ebnf: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these texts."""

    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """Free text in which what stands between certain marks is constrained; JSON text in the form of XGrammar."""

    tag: str


Constraint = JsonSchema | JsonObject | Regex | Grammar | OneOf | StructuralTag
