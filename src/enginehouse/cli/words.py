"""Says in flags what a settings class says in the names of its fields: it does not know how it was reached."""

from __future__ import annotations

import re
import traceback


def in_flags(problem: ValueError) -> str:
    """The text of a `__post_init__` that refused its values, with the flag in place of each field's name."""
    refused = None
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        if frame.f_code.co_name == "__post_init__":
            refused = type(frame.f_locals.get("self"))
    if refused is None:
        return str(problem)
    # Here, and not above: light commands load no settings.
    from enginehouse.settings import setting_rows
    from enginehouse.settings.table import rows

    flags = {row.field: row.flag for row in setting_rows() if row.group is refused}
    flags = flags or {row.field: row.flag for row in rows(refused)}
    return re.sub(r"(?<![\w'-])[a-z]+(_[a-z]+)*\b", lambda word: flags.get(word[0], word[0]), str(problem))
