"""The example that watches a stream: the thinking is really cut, where the policy says so."""

import importlib.util
import sys
import time
from pathlib import Path

import pytest

from offramp import MaxProbability, Policy

PATH = Path(__file__).parents[1] / "examples" / "stop_the_thinking.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("stop_the_thinking", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["stop_the_thinking"] = module
    spec.loader.exec_module(module)
    return module


def test_sessions_on_a_stream_decide_as_the_ledger_does_and_cut_the_thinking(example):
    stand_in = example.StandIn()
    server = example.Server(stand_in.url, "stand-in")
    questions = example.sums(40, start=0)
    ledger = example.record(server, questions)
    held_out, val, test = ledger.partition()
    policy = Policy(MaxProbability()).fit(held_out).tune(val).at(budget=0.5)
    exits, costs = policy.decide(ledger.as_split("test")), ledger.cost_model.cumulative
    stand_in.pause = 0.002
    cut = 0
    for number in test.sample_ids:
        question = questions[number][0]
        whole = stand_in.tokens[question]
        session = example.ask(server, policy, question)
        assert session.stage == min(int(exits[number]), int(ledger.lengths[number]) - 1)
        assert session.cost == costs[number, session.stage]
        if session.cost < whole / 2:
            time.sleep(0.05)  # the server notices at its next token or two
            assert stand_in.tokens[question] < whole
            cut += 1
    assert cut > 1
    stand_in.shutdown()
