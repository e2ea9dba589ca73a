"""The same decisions on a cluster of Ray with two workers, in batches and behind HTTP."""

import http.client
import io
import json
import os
import re
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import offramp
from offramp.errors import ConfigError, DataError, FileFormatError, MissingExtraError
from offramp.replay import replay
from offramp.runtime import near_threshold
from offramp.serving import AppConfig, Model, PolicyPredictor, predict_dataset
from offramp.serving.ray import app, deployment, for_workers, parsed

from .conftest import NORMALIZATION, READING, pixels

pytest.importorskip("ray")

BATCH = 8
MAX_BYTES = 40_000
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ray.md"


@pytest.fixture(scope="module")
def runner(small):
    """What the workers run, here: they start faster without torch."""
    return offramp.OnnxRunner(small.export, threads=1)


@pytest.fixture(scope="module")
def dataset(cluster):
    """Twelve blocks of one batch each, with ids, in order."""
    import ray.data

    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rows = [{"id": row, "image": image} for row, image in enumerate(pixels(12 * BATCH))]
    return ray.data.from_items(rows, override_num_blocks=12)


class TestBatches:
    pytestmark = pytest.mark.cluster

    def test_two_workers_decide_as_one_runner_and_keep_order_and_columns(
        self, dataset, small, runner, tmp_path
    ):
        class Marked(PolicyPredictor):
            """Says which worker answered, and waits for the other one to have loaded."""

            def __init__(self, *parts):
                super().__init__(*parts)
                (tmp_path / str(os.getpid())).touch()

            def __call__(self, batch):
                until = time.monotonic() + 120
                while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
                    time.sleep(0.05)
                worker = np.full(len(batch["id"]), os.getpid())
                return {**super().__call__(batch), "worker": worker}

        found = dataset.map_batches(
            Marked,
            fn_constructor_args=(Model.of_run(small.export), None, False),
            concurrency=2,
            num_cpus=0.5,
            batch_size=BATCH,
        ).to_pandas()
        assert list(found) == [
            *("id", "prediction", "confidence", "likely_wrong", "exit", "cost", "failed"),
            "worker",
        ]
        assert found["id"].tolist() == list(range(12 * BATCH))
        assert found["worker"].nunique() == 2
        inputs = NORMALIZATION(pixels(12 * BATCH))
        expected = [runner(batch) for batch in np.split(inputs, 12)]
        for name, part in (
            ("prediction", "predictions"),
            ("exit", "exits"),
            ("confidence", "confidence"),
            ("likely_wrong", "likely_wrong"),
            ("cost", "costs"),
        ):  # bit by bit, since the batches are the same
            wanted = np.concatenate([getattr(output, part) for output in expected])
            assert np.array_equal(found[name].to_numpy(), wanted), name
        assert found["exit"].nunique() == 2 and not found["failed"].any()

    def test_a_worker_that_is_killed_loses_no_row_and_answers_none_twice(
        self, dataset, small, runner, tmp_path
    ):
        class Mortal(PolicyPredictor):
            """The first worker that has answered two batches is killed in the third."""

            def __init__(self, *parts):
                super().__init__(*parts)
                self.batches = 0

            def __call__(self, batch):
                self.batches += 1
                dead = tmp_path / "dead"
                if self.batches == 3 and not dead.exists():
                    dead.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                worker = np.full(len(batch["id"]), os.getpid())
                return {**super().__call__(batch), "worker": worker}

        found = dataset.map_batches(
            Mortal,
            fn_constructor_args=(Model.of_run(small.export), None, False),
            concurrency=2,
            num_cpus=0.5,
            batch_size=BATCH,
            max_restarts=2,
            max_task_retries=2,
        ).to_pandas()
        assert (tmp_path / "dead").exists()
        assert sorted(found["id"]) == list(range(12 * BATCH))
        expected = [runner(batch) for batch in np.split(NORMALIZATION(pixels(12 * BATCH)), 12)]
        classes = np.concatenate([output.predictions for output in expected])
        assert np.array_equal(found.sort_values("id")["prediction"].to_numpy(), classes)

    def test_mistakes_show_before_the_cluster_works(self, dataset, small):
        with pytest.raises(FileFormatError, match="there is no folder"):
            predict_dataset(dataset, Model(small.folder / "network", small.folder / "none"))
        model = Model.of_run(small.export)
        with pytest.raises(DataError, match="no column 'photo' to predict from, only id, image"):
            predict_dataset(dataset, model, column="photo")
        with pytest.raises(DataError, match="already have columns named cost"):
            predict_dataset(dataset.rename_columns({"id": "cost"}), model)
        with pytest.raises(ConfigError, match="`batch_size` must be a whole number of at least 1"):
            predict_dataset(dataset, model, batch_size=0)


class Served:
    """Two replicas behind HTTP on a free port."""

    def __init__(self, model):
        from ray import serve

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": self.port})
        config = AppConfig(max_bytes=MAX_BYTES, max_pixels=5000, body_timeout=1.0)
        scaling = {"min_replicas": 2, "max_replicas": 3, "target_ongoing_requests": 8}
        options = {"autoscaling_config": scaling, "ray_actor_options": {"num_cpus": 0.5}}
        made = deployment(model, config).options(**options)
        serve.run(made.bind(), name="digits", route_prefix="/")

    def exchange(self, method, path="/predict", body=None, kind="application/json", **headers):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": kind, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served(cluster, small):
    from ray import serve

    try:
        yield Served(Model.of_run(small.export))
    finally:
        serve.shutdown()


def undecided(small, images):
    """Samples that another batch may send to another exit."""
    labels = torch.zeros(len(images), dtype=torch.long)
    data = TensorDataset(torch.from_numpy(images), labels)
    ledger = offramp.record(small.network, data, "test", progress=False)
    scores = replay(small.policy.answer, small.policy.scorer, ledger).scores
    return near_threshold(scores, small.policy.thresholds)


class TestServing:
    pytestmark = pytest.mark.cluster

    def test_two_replicas_answer_many_clients_as_one_runner(self, served, small, runner):
        from ray import serve

        inputs = NORMALIZATION(pixels(64))
        expected, near = runner(inputs), undecided(small, inputs)

        def ask(row):
            body = {"id": row, "inputs": inputs[row].tolist()}
            status, text, _ = served.exchange("POST", body=body)
            return status, json.loads(text)

        with ThreadPoolExecutor(16) as clients:
            answers = list(clients.map(ask, range(64)))
        for row, (status, answer) in enumerate(answers):
            assert status == 200 and answer["id"] == row  # not another client's answer
            if not near[row]:
                assert answer["class"] == int(expected.predictions[row])
                assert answer["exit"] == int(expected.exits[row])
                assert answer["cost"] == pytest.approx(float(expected.costs[row]), abs=1e-5)
        assert near.sum() <= 3 and len({answer["exit"] for _, answer in answers}) == 2
        running = serve.status().applications["digits"].deployments["offramp"].replica_states
        assert 2 <= running["RUNNING"] <= 3

    def test_a_replica_that_is_killed_loses_no_request_that_is_sent_again(self, served, small):
        """Two replicas, of which one is killed under load; Ray starts another one."""
        import psutil

        inputs = NORMALIZATION(pixels(64))
        killed, again, answers = [], [], {}

        def ask(row):
            for _ in range(20):  # a request to the replica that dies may be refused
                status, text, _ = served.exchange("POST", body={"id": row, "inputs": rows[row]})
                if status == 200:
                    answers.setdefault(row, []).append(json.loads(text)["id"])
                    return
                again.append(status)
                time.sleep(0.2)

        rows = [each.tolist() for each in inputs]
        with ThreadPoolExecutor(8) as clients:
            asked = [clients.submit(ask, row) for row in range(64)]
            while not any(each.done() for each in asked):
                time.sleep(0.01)
            for process in psutil.Process().children(recursive=True):
                if "ServeReplica" in " ".join(process.cmdline()) and not killed:
                    killed.append(process.pid)
                    process.kill()
            for each in asked:
                each.result()
        assert killed
        assert answers == {row: [row] for row in range(64)}  # each once, and its own
        assert len(again) <= 16

    def test_images_are_normalised_as_in_training_and_ids_come_back(self, served, runner):
        pillow = pytest.importorskip("PIL.Image")
        image, file = pixels(1), io.BytesIO()
        pillow.fromarray(image[0].transpose(1, 2, 0)).save(file, "PNG")
        expected = runner(NORMALIZATION(image))
        status, text, headers = served.exchange(
            "POST", body=file.getvalue(), kind="image/png", **{"X-Request-ID": "mine"}
        )
        answer = json.loads(text)
        assert status == 200 and answer["id"] == "mine"
        assert headers.get_all("x-request-id") == ["mine"]
        assert answer["class"] == int(expected.predictions[0])
        assert answer["name"] == READING.class_names[answer["class"]]
        assert answer["confidence"] == pytest.approx(float(expected.confidence[0]), abs=1e-4)

    def test_a_body_that_grows_without_end_is_cut_off(self, served):
        """Chunks say no size beforehand, and reach a replica as they arrive."""
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
            head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(MAX_BYTES // 4096 + 1):
                client.sendall(b"1000\r\n" + b"[" * 4096 + b"\r\n")
            assert b"413" in client.recv(200).split(b"\r\n")[0]

    def test_nothing_else_is_offered(self, served):
        assert served.exchange("GET", "/health")[:2] == (200, b"ok")
        assert served.exchange("GET", "/predict")[0] == 405
        assert served.exchange("GET", "/docs")[0] == served.exchange("GET", "/openapi.json")[0]
        assert served.exchange("GET", "/docs")[0] == 404

    def test_all_metrics_are_among_rays_own(self, served, cluster):
        status, text, _ = served.exchange("POST", body={"inputs": [1]})
        assert status == 422 and "give `inputs` of the shape" in json.loads(text)["detail"]
        node = cluster.nodes()[0]
        wanted = {
            'ray_offramp_requests_total{.*path="/predict".*status="200"',
            'ray_offramp_requests_total{.*path="/predict".*status="422"',
            'ray_offramp_exits_total{.*exit="0"',
            "ray_offramp_cost_saved_total{",
            "ray_offramp_request_seconds_count{",
            "ray_offramp_budget{",
        }
        until = time.monotonic() + 90  # Ray gathers them every few seconds
        while time.monotonic() < until:
            address = (node["NodeManagerAddress"], node["MetricsExportPort"])
            connection = http.client.HTTPConnection(*address, timeout=10)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            connection.close()
            missing = {name for name in wanted if not re.search(rf"(?m)^{name}", text)}
            if not missing:
                break
            time.sleep(0.5)
        assert not missing


def of_run(network, policy=None, budget=None):
    """`Model.of_run` without the folders."""
    return Model(Path(network), Path(policy), budget)


def test_the_page_shows_a_command_whose_words_ray_takes_as_a_configuration(monkeypatch):
    from ray.serve.schema import ServeDeploySchema

    page = PAGE.read_text()
    (words,) = re.findall(r"^serve run (.+)$", page, flags=re.MULTILINE)
    import_path, *given = words.split()
    (name,) = re.findall(r"options of the deployment `(\w+)`", page)
    described = {
        "name": "digits",
        "import_path": import_path,
        "args": dict(each.split("=") for each in given),
        "deployments": [{"name": name, "num_replicas": 4}],
    }
    (application,) = ServeDeploySchema.model_validate({"applications": [described]}).applications
    module, _, name = application.import_path.partition(":")
    assert getattr(sys.modules[module], name) is app
    monkeypatch.setattr(Model, "of_run", staticmethod(of_run))
    model, _ = parsed(application.args)
    assert model == Model(Path("/models/digits"), Path("/models/policy"), 0.5)
    assert [part.name for part in application.deployments] == ["offramp"]


def test_relative_folders_are_found_by_workers_that_start_elsewhere(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    model = Model(Path("run"), Path("policy"))
    for given, wanted in (({}, Path.cwd()), ({"working_dir": "gcs://x"}, Path())):
        context = SimpleNamespace(runtime_env=given)
        monkeypatch.setattr(ray, "get_runtime_context", lambda context=context: context)
        assert for_workers(model) == Model(wanted / "run", wanted / "policy")


def test_arguments_may_be_text_as_on_a_command_line(monkeypatch):
    arguments = {"network": "run", "policy": "policy", "budget": "0.5", "max_batch": "8"}
    monkeypatch.setattr(Model, "of_run", staticmethod(of_run))
    model, config = parsed(arguments)
    assert model == Model(Path("run"), Path("policy"), 0.5)
    assert config == AppConfig(max_batch=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": "tests"}, "tests is no export, which would have a policy: give the folder"),
        ({"network": "run", "budgets": 1}, "`argument` must be one of .*did you mean `budget`"),
        ({"network": "run", "policy": "p", "budget": "half"}, r"Expected `float.*\$\.budget"),
        ({"network": "run", "policy": "p", "max_batch": 0}, "`max_batch` must be a whole number"),
        ({"network": "run", "policy": "p"}, "there is no folder .*run on "),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_deployed(arguments, message):
    with pytest.raises((ConfigError, FileFormatError), match=message):
        app(arguments)


@pytest.mark.parametrize(
    "call",
    [lambda: predict_dataset(None, Model(Path("a"))), lambda: deployment(Model(Path("a")))],
)
def test_without_ray_the_pip_command_is_named(call, monkeypatch):
    def absent(name):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return import_module(name)

    monkeypatch.setattr("offramp.imports.import_module", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'offramp\[ray\]'"):
        call()
