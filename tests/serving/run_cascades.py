"""Cascades of three kinds of models, from recording to serving; `test_server.py` runs this."""

import json
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression

from offramp import Cascade, MaxProbability, Policy
from offramp.runtime import Member
from offramp.scorers import LogisticCorrector
from offramp.serving import ServeConfig, serve

SAMPLES, FEATURES, CLASSES = 300, 8, 3
RNG = np.random.default_rng(0)
LABELS = RNG.integers(CLASSES, size=SAMPLES)
INPUTS = 2 * np.eye(CLASSES, FEATURES, dtype=np.float32)[LABELS]
INPUTS += RNG.standard_normal(INPUTS.shape, np.float32)
WORDS = [f"{number % 7}-{number}" for number in range(SAMPLES)]
TRUTH = [word[0] for word in WORDS]


def quick(words):
    return [(word[0], 0.9) if word[0] < "5" else ("?", 0.3) for word in words]


def careful(words):
    return [(word[0], 0.99) for word in words]


def session(noise):
    """An ONNX Runtime session that returns its first inputs as logits, with some noise."""
    weight = np.eye(FEATURES, CLASSES) + noise * RNG.standard_normal((FEATURES, CLASSES))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, CLASSES])],
        [numpy_helper.from_array(weight.astype(np.float32), "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString())


def classifier(penalty):
    return LogisticRegression(C=penalty).fit(INPUTS, LABELS)


def answer_of_server(cascade, policy, item, read_item):
    """The answer to one item over HTTP."""
    answers = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ask(address):
        body, headers = json.dumps({"item": item}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/predict", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answers.append(json.load(answer))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    serve(cascade, ServeConfig(port=port), policy=policy, read_item=read_item, ready=ask)
    return answers[0]


def check(name, models, inputs, labels, scorer, read_item=None):
    members = [Member(model, cost) for model, cost in zip(models, (1.0, 5.0), strict=True)]
    cascade = Cascade(members)
    ledger = cascade.record((inputs, labels), split="all")
    held_out, val, _ = ledger.partition()
    policy = Policy(scorer).fit(held_out).tune(val).at(budget=0.7)
    policy = Policy.load(policy.save(Path(sys.argv[1]) / name))
    found = cascade.run(inputs, policy)
    stages = [answer.stage for answer in found]
    assert stages == policy.decide(ledger.as_split("test")).tolist()
    assert set(stages) == {0, 1}
    item = inputs[0] if isinstance(inputs, list) else inputs[0].tolist()
    answer = answer_of_server(cascade, policy, item, read_item)
    assert (answer["answer"], answer["exit"]) == (found[0].answer, found[0].stage)
    sys.stdout.write(f"served {name}\n")


def as_floats(item):
    return np.asarray(item, np.float32)


if __name__ == "__main__":
    check("callables", [quick, careful], WORDS, TRUTH, MaxProbability())
    models = [classifier(1e-4), classifier(1.0)]
    check("classifiers", models, INPUTS, LABELS, LogisticCorrector(), as_floats)
    check("sessions", [session(0.5), session(0.1)], INPUTS, LABELS, MaxProbability(), as_floats)
