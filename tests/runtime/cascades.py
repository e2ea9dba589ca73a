"""Cascades of made-up models for tests: words such as `6-6`, of which the first part is asked."""

import asyncio

from offramp import Cascade, MaxProbability, Policy
from offramp.runtime import Member


def words(samples=200):
    return [f"{number % 7}-{number}" for number in range(samples)]


def truth(text):
    return text.split("-")[0]


def quick(batch):
    """Knows the answer to all but two of seven questions, and how sure it is."""
    return [
        (truth(t), 0.9) if int(truth(t)) < 5 else ("?", 0.2 + 0.001 * (len(t) % 5)) for t in batch
    ]


def exact(batch):
    return [(truth(text), 0.99) for text in batch]


async def first(text):
    await asyncio.sleep(0)
    return quick([text])[0]


async def second(text):
    return truth(text), 0.99


def cascade_of(one=first, two=second, **settings):
    settings = {"retries": 2, "backoff": 0.001, "unit": "dollars", **settings}
    return Cascade([Member(one, 1.0, "first"), Member(two, 5.0, "second")], **settings)


def policy_for_words(budget=0.6):
    with cascade_of(quick, exact) as cascade:
        ledger = cascade.record((words(), [truth(w) for w in words()]), split="all")
    held_out, val, _ = ledger.partition()
    return Policy(MaxProbability()).fit(held_out).tune(val).at(budget=budget)
