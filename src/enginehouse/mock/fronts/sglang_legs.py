"""The part in a hand-over that a request asks SGLang to play."""

from __future__ import annotations

from enginehouse._proto import sglang_runtime_v1_pb2 as pb
from enginehouse.domain.engine import Role
from enginehouse.mock.handover.legs import Leg, Meet, Offer


def leg(request: pb.GenerateRequest, role: Role) -> Leg | None:
    """None: none, which only an aggregated engine can serve. An aggregated one does not look at the parameters."""
    if role is Role.AGGREGATED or not request.HasField("disaggregated_params"):
        return None
    met = request.disaggregated_params
    if role is Role.PREFILL:
        return Offer(met.bootstrap_room)
    return Meet(met.bootstrap_host, met.bootstrap_port, met.bootstrap_room)
