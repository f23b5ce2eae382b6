"""`kv_transfer_params`, as vLLM's two fronts carry them: which part in a hand-over they ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from enginehouse.mock.engine import Engine, Stream
from enginehouse.mock.fronts.rpc import Refused
from enginehouse.mock.handover.legs import Fetch, Keep, Leg
from enginehouse.mock.simulator import End


def leg_of_json(engine: Engine, text: str) -> Leg | None:
    """From JSON text; what is not JSON is refused even without a KV connector."""
    try:
        params = json.loads(text or "{}")
    except ValueError:
        params = None
    if not isinstance(params, dict):
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "kv_transfer_params_json is not a JSON object")
    return _leg(engine, params)


def leg_of_struct(engine: Engine, data: bytes) -> Leg | None:
    """From a protobuf Struct, whose numbers are all doubles: whole ones become integers again."""
    return _leg(
        engine, {name: _whole(value) for name, value in json_format.MessageToDict(Struct.FromString(data)).items()}
    )


def kept(engine: Engine, stream: Stream) -> Mapping[str, Any] | None:
    """What an answer that has ended says of what is kept; None: nothing."""
    if isinstance(stream.answer.job.leg, Keep) and stream.answer.end in (End.LENGTH, End.STOP):
        return engine.handover.leases.keep(stream.answer)
    return None


def struct(params: Mapping[str, Any]) -> bytes:
    """As the native protocol carries it."""
    made = Struct()
    made.update(params)
    return made.SerializeToString(deterministic=True)


def _leg(engine: Engine, params: Mapping[str, Any]) -> Leg | None:
    if not engine.handover.connector:
        return None
    if params.get("do_remote_decode"):
        return Keep()
    return Fetch(params) if params.get("do_remote_prefill") else None


def _whole(value: object) -> object:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(one) for one in value]
        case _:
            return value
