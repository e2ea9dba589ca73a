"""Requests that come together share a batch, and each gets its own answer."""

import asyncio
import threading
import time

import pytest
from starlette.exceptions import HTTPException

from offramp.serving import AppConfig
from offramp.serving.batches import Batcher, Room


class Model:
    """Answers with its samples, as soon as it may."""

    def __init__(self):
        self.sizes, self.may, self.at_once, self.most = [], asyncio.Event(), 0, 0
        self.may.set()

    async def __call__(self, queries):
        self.sizes.append(len(queries))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.may.wait()
        self.at_once -= 1
        if any(each == "crash" for each in queries):
            raise RuntimeError("a fault of the model")
        return [{"id": each} for each in queries]


def batcher_of(model, max_batch=4, batch_wait=0.0, **settings):
    return Batcher(model, AppConfig(max_batch=max_batch, batch_wait=batch_wait, **settings))


def run(story):
    return asyncio.run(asyncio.wait_for(story, 30))


def test_requests_that_come_together_share_batches_of_the_largest_size():
    async def story():
        model = Model()
        batcher = batcher_of(model, batch_wait=5)
        found = await asyncio.gather(*(batcher(number) for number in range(8)))
        assert [each["id"] for each in found] == list(range(8))
        assert model.sizes == [4, 4]  # full batches wait for nobody

    run(story())


def test_a_request_waits_for_others_no_longer_than_it_may():
    async def story():
        model = Model()
        batcher = batcher_of(model, batch_wait=0.01)
        assert await batcher(1) == {"id": 1}
        assert await batcher(2) == {"id": 2}
        assert model.sizes == [1, 1]

    run(story())


@pytest.mark.parametrize("concurrency", [1, 2])
def test_requests_gather_while_batches_are_answered(concurrency):
    async def story():
        model = Model()
        model.may.clear()
        batcher = batcher_of(model, max_batch=8, concurrency=concurrency)
        waiting = []
        for number in range(6):
            waiting.append(asyncio.create_task(batcher(number)))
            await asyncio.sleep(0.01)
        assert model.sizes == [1] * concurrency
        model.may.set()
        await asyncio.gather(*waiting)
        assert model.sizes == [1] * concurrency + [6 - concurrency]
        assert model.most == concurrency

    run(story())


def test_a_request_that_was_given_up_is_left_out():
    async def story():
        model = Model()
        model.may.clear()
        batcher = batcher_of(model, request_timeout=0.05)
        first = asyncio.create_task(batcher(1))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(batcher(2))
        await asyncio.sleep(0.06)
        assert batcher.is_stuck
        for task in (first, second):
            task.cancel()
        model.may.set()
        await asyncio.sleep(0.02)
        assert not batcher.is_stuck
        assert await batcher(3) == {"id": 3}
        assert model.sizes == [1, 1]  # the second was given up before its turn

    run(story())


def test_a_batch_that_fails_is_refused_and_the_next_is_answered(caplog):
    async def story():
        batcher = batcher_of(Model())
        with pytest.raises(HTTPException, match="the server's log says why") as found:
            await batcher("crash")
        assert found.value.status_code == 500
        assert await batcher(1) == {"id": 1}

    run(story())
    assert "a batch of 1 requests could not be answered" in caplog.text


@pytest.mark.parametrize("leaves", ["while it waits", "while it works"])
def test_there_is_room_for_so_much_at_a_time_whoever_leaves(leaves):
    used, most, lock = [0], [0], threading.Lock()

    def work(size):
        with lock:
            used[0] += size
            most[0] = max(most[0], used[0])
        time.sleep(0.02)
        with lock:
            used[0] -= size
        return size

    async def story():
        room = Room(10)
        tasks = [
            asyncio.create_task(room.run(size, lambda size=size: work(size)))
            for size in (6, 4, 10, 3, 3, 9)
        ]
        await asyncio.sleep(0.01)
        tasks[0 if leaves == "while it works" else 2].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(each, asyncio.CancelledError) for each in found) == 1
        assert await room.run(10, lambda: work(10)) == 10  # all of it is free again
        assert most[0] <= 10

    run(story())
