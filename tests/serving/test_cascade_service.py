"""A cascade behind HTTP, with one async client for all requests."""

import asyncio

import httpx2
import pytest

import offramp
from offramp.runtime import Member
from offramp.serving import AppConfig

from ..runtime.cascades import first, policy_for_words, truth, words


@pytest.mark.parametrize("concurrency", [1, 8])
def test_one_async_client_serves_a_hundred_requests(concurrency):
    loops = set()

    async def second(text):
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.002)
        if len(loops) > 1 or asyncio.get_running_loop().is_closed():
            raise RuntimeError("Event loop is closed")
        return truth(text), 0.99

    members = [Member(first, 1.0, "first"), Member(second, 5.0, "second")]
    cascade = offramp.Cascade(members, unit="dollars", concurrency=16)
    config = AppConfig(concurrency=concurrency, max_batch=8)
    app = offramp.serving.app(cascade, config, policy=policy_for_words())

    async def program():
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            asked = (client.post("/predict", json={"item": word}) for word in words(100))
            return await asyncio.gather(*asked)

    found = asyncio.run(program())
    assert [each.status_code for each in found] == [200] * 100
    assert [each.json()["answer"] for each in found] == [truth(word) for word in words(100)]
