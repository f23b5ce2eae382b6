"""Reads what the API server sends (list pages, watch lines, Status bodies) into inputs of the watch machine."""

from __future__ import annotations

import msgspec

from enginehouse.core.pod_rules import PodRules
from enginehouse.core.pods import PodRecord, read_record
from enginehouse.core.watch.inputs import (
    Bookmark,
    Failure,
    FailureKind,
    IgnoredLine,
    Line,
    PageListed,
    PodChanged,
    PodGone,
    StreamFailed,
)

_SHOWN = 80


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str | None = msgspec.field(name="continue", default=None)


class _PodList(msgspec.Struct):
    metadata: _ListMeta
    # Raw: one pod that cannot be read must not cost the others. Null: an empty list.
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkObject(msgspec.Struct):
    # A bookmark looks like a pod without containers on some servers: nothing but its version is read.
    metadata: _ListMeta


class Status(msgspec.Struct):
    """Kubernetes' Status object."""

    kind: str = ""
    code: int | None = None
    reason: str | None = None
    message: str | None = None


def read_page(body: bytes, attempt: int, rules: PodRules) -> PageListed | Failure:
    """Read one page of a pod list."""
    try:
        page = msgspec.json.decode(body, type=_PodList)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Failure(FailureKind.BROKEN, f"the list is not a Kubernetes list: {error}: {shown(body)}")
    if not page.metadata.resource_version:
        return Failure(FailureKind.BROKEN, f"the list has no resourceVersion: {shown(body)}")
    records = tuple(read_record(item, rules) for item in page.items or ())
    return PageListed(attempt, page.metadata.resource_version, records, page.metadata.continue_ or None)


def read_line(line: bytes, attempt: int, rules: PodRules) -> Line | Failure:
    """Read one line of a watch."""
    try:
        event = msgspec.json.decode(line, type=_Event)
        match event.type:
            case "ADDED" | "MODIFIED":
                return PodChanged(attempt, _record(event, rules))
            case "DELETED":
                record = _record(event, rules)
                return PodGone(attempt, record.owner, record.version)
            case "BOOKMARK":
                bookmark = msgspec.json.decode(event.object, type=_BookmarkObject)
                return Bookmark(attempt, bookmark.metadata.resource_version)
            case "ERROR":
                return StreamFailed(attempt, refusal(read_status(event.object), None, "watch pods"))
            case _:
                return IgnoredLine(attempt)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Failure(FailureKind.BROKEN, f"a line of the watch is not a Kubernetes event: {error}: {shown(line)}")


def _record(event: _Event, rules: PodRules) -> PodRecord:
    record = read_record(event.object, rules)
    if record.owner in ("", "/"):
        # Nothing says which pod it was: only a listing can tell what the event meant.
        raise msgspec.DecodeError("the object names no pod")
    return record


def read_status(body: bytes | msgspec.Raw) -> Status:
    """Read a Status; an empty one if it is something else (a proxy's page, say)."""
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status()


def refusal(status: Status, http: int | None, doing: str, retry_after: float | None = None) -> Failure:
    """Describe an error answer. doing: verb, resource and place, such as `list pods in namespace "default"`."""
    code = http if http is not None else status.code
    said = status.message or status.reason or "no reason given"
    match code:
        case 401:
            text = f"the API server does not accept our credentials (401, to {doing}): {said}"
        case 403:
            text = f"not allowed to {doing} (403; RBAC): {said}"
        case 410:
            text = f"the version to go on from has expired (410, to {doing}): {said}"
        case _:
            text = f"the API server refused to {doing} ({code or 'no code'}): {said}"
    return Failure(FailureKind.REFUSED, text, code, retry_after)


def shown(body: bytes) -> str:
    """Return the start of what came, for a message."""
    return ascii(body[:_SHOWN])[1:] + ("…" if len(body) > _SHOWN else "")
