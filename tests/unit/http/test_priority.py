"""How urgent a request is, as its client says it: only where the operator lets clients say so."""

import asyncio

import pytest

from enginehouse.domain.stream import Finish
from tests.unit.http.test_completions import TOKENIZER, Edge, error, run

PATHS = ["/v1/chat/completions", "/v1/completions"]


@pytest.mark.parametrize("path", PATHS)
def test_s3_a_client_that_may_not_say_it_is_refused(path: str) -> None:
    async def scenario(edge: Edge) -> None:
        for answer in (await edge.post(path, priority=1), await edge.post("/explain?chat", priority=1)):
            assert error(answer) == (400, "unsupported_parameter", "priority")

    run(scenario)


@pytest.mark.parametrize("path", PATHS)
def test_it_reaches_the_engine_where_it_may_be_said(path: str) -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post(path, priority=-3))
        call = await edge.call()
        assert call.request.sampling.priority == -3
        call.deliver([TOKENIZER.eos_token_ids[0]], Finish.STOP)
        assert (await request).status_code == 200
        assert (await edge.post("/explain?chat", priority=1)).status_code == 200

    run(scenario, client_priority=True)
