"""Adapters of mock engines, over the wire: listed, taken, and refused once they are gone."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from enginehouse._proto import sglang_runtime_v1_pb2 as sglang
from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.domain.engine import ProtocolName
from tests.contract.test_mock import CONTROL, Peer, S, _n, _s, against


@pytest.mark.parametrize("protocol", [ProtocolName.SGLANG, ProtocolName.VLLM_NATIVE])
def test_o14_adapters_come_and_go_and_those_that_are_not_loaded_are_refused(protocol: ProtocolName) -> None:
    @against(protocol, loras="a,b", tokens_per_second=0.0)
    async def _(one: Peer) -> None:
        is_sglang = protocol is ProtocolName.SGLANG
        refusal = grpc.StatusCode.INTERNAL if is_sglang else grpc.StatusCode.NOT_FOUND

        async def listed() -> list[str]:
            if is_sglang:
                cards = await one.unary(S + "ListModels", sglang.ListModelsRequest(), sglang.ListModelsResponse)
                assert {card.parent for card in cards.models[1:]} <= {cards.models[0].id}
                return [card.id for card in cards.models if card.HasField("parent")]
            told = await one.unary(CONTROL + "ListLoras", native.ListLorasRequest(), native.ListLorasResponse)
            return [lora.lora_name for lora in told.loras]

        async def asked(name: str) -> grpc.StatusCode:
            path, request, _ = _s() if is_sglang else _n()
            setattr(request, "lora_path" if is_sglang else "lora_name", name)
            try:
                assert [data async for data in one.stream(path, request)]
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        assert await listed() == ["a", "b"]
        assert [await asked(name) for name in ("a", "b", "c")] == [grpc.StatusCode.OK] * 2 + [refusal]
        one.engine.set_faults(loras="c,b")
        assert await listed() == ["c", "b"]
        assert [await asked(name) for name in ("a", "b", "c")] == [refusal] + [grpc.StatusCode.OK] * 2
        one.engine.set_faults(loras="")
        assert await listed() == []
        assert await asked("b") in (refusal, grpc.StatusCode.FAILED_PRECONDITION)
