"""What the application answers, in this process: without a socket."""

import io
import random
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import offramp
from offramp.data.decoding import Normalization
from offramp.errors import (
    ConfigError,
    FileFormatError,
    MissingExtraError,
    NetworkError,
    OriginError,
)
from offramp.runtime import Member
from offramp.serving import AppConfig, ImageReader, Model, Reading
from offramp.serving.middleware import HEALTH

from .asgi import GONE, NOTHING_MORE, Client
from .conftest import NORMALIZATION, READING, SIZE, policy_of
from .conftest import pixels as random_pixels

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
Image = pytest.importorskip("PIL.Image")

MAX_BYTES = 20_000
TOKEN = "only-for-tests"
NAMES = ("ant", "bee", "cat", "dog")
IMAGENET = Normalization()
LIMITS = AppConfig(max_bytes=MAX_BYTES, max_pixels=5000, body_timeout=0.3)


class Served(Client):
    """The application of a network in a folder, and a runner of the same network."""

    def __init__(self, small, folder, patch):
        for name in ("network", "policy"):
            shutil.copytree(small.folder / name, folder / name)
        (folder / "names.txt").write_text("\n".join(NAMES))
        self.folder, self.runner = folder, small.runner
        with pytest.warns(offramp.errors.OriginWarning, match="normalised as ImageNet's"):
            self.model = Model.of_run(
                folder / "network", folder / "policy", class_names=folder / "names.txt"
            )
        patch.setenv("OFFRAMP_ADMIN_TOKEN", TOKEN)
        super().__init__(offramp.serving.app(self.model, LIMITS))

    def admin(self, method, path, body=None, token=TOKEN):
        found = self.request(method, path, body, Authorization=f"Bearer {token}")
        return found.status, found.json()


@pytest.fixture(scope="module")
def served(small, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield Served(small, tmp_path_factory.mktemp("served"), patch)


def png(seed, kind="PNG"):
    numbers = random.Random(seed)
    image = Image.new("RGB", (SIZE, SIZE))
    image.putdata([tuple(numbers.randrange(256) for _ in range(3)) for _ in range(SIZE**2)])
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def pixels(encoded, normalization=IMAGENET):
    with Image.open(io.BytesIO(encoded)) as image:
        return normalization(np.asarray(image).transpose(2, 0, 1)[None])


def test_many_clients_get_their_own_answers_while_others_misbehave(served):
    inputs = NORMALIZATION(random_pixels(60, seed=1))
    expected = served.runner(inputs)
    bad = [b"{", b"[" * 5000, b'{"inputs": [[1]]}', b'{"inputs": NaN}', b"x" * (MAX_BYTES + 1)]

    def good(number):
        body = {"id": f"n-{number}", "inputs": inputs[number].tolist()}
        return number, served.post(body)

    with ThreadPoolExecutor(24) as clients:
        slow = clients.submit(served.post, [b"12345", NOTHING_MORE])
        refused = clients.map(lambda n: served.post(bad[n % len(bad)]).status, range(20))
        answers = list(clients.map(good, range(60)))
        assert set(refused) == {400, 413, 422}
        assert slow.result().status == 408
    for number, found in answers:
        answer = found.json()
        assert found.status == 200 and answer["id"] == f"n-{number}"  # not another client's answer
        assert answer["class"] == int(expected.predictions[number])
        assert answer["name"] == NAMES[answer["class"]]
        assert answer["exit"] == int(expected.exits[number])
        assert answer["cost"] == pytest.approx(float(expected.costs[number]), abs=1e-5)
        assert answer["confidence"] == pytest.approx(float(expected.confidence[number]), abs=1e-3)
        assert answer["likely_wrong"] == bool(expected.likely_wrong[number])
    assert len({found.json()["exit"] for _, found in answers}) == 2  # each at its own


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_images_are_answered_like_their_pixels(served, kind):
    encoded = png(3, kind)
    expected = served.runner(pixels(encoded))
    found = served.post(encoded, f"image/{kind.lower()}", **{"X-Request-ID": "7"})
    answer = found.json()
    assert found.status == 200 and answer["id"] == "7" and found.headers["x-request-id"] == "7"
    assert answer["class"] == int(expected.predictions[0])
    assert answer["confidence"] == pytest.approx(float(expected.confidence[0]), abs=1e-3)


def test_a_live_runner_takes_images_if_it_is_told_how_they_are_read(small):
    encoded = png(3)
    assert Client(offramp.serving.app(small.runner)).post(encoded, "image/png").status == 415
    answer = Client(offramp.serving.app(small.runner, reading=READING)).post(encoded, "image/png")
    (expected,) = small.runner(pixels(encoded, NORMALIZATION)).records(NAMES)
    assert answer.json() == {"id": None, **expected}


def test_bad_requests_get_a_reason_as_json(served):
    """All others are in `test_requests.py`."""
    for body, kind, status, reason in (
        (b"{", "application/json", 400, "not valid JSON"),
        (b"hello", "text/plain", 415, "the content type must be"),
        (b"x" * (MAX_BYTES + 1), "application/json", 413, f"may have {MAX_BYTES:,} bytes"),
    ):
        found = served.post(body, kind)
        assert found.status == status and reason in found.json()["detail"]


def test_an_input_without_a_finite_answer_is_refused_alone(served):
    inputs = np.full((3, SIZE, SIZE), 3e38).tolist()
    found = served.post({"inputs": inputs, "id": 4})
    assert found.status == 422
    assert found.json() == {
        "detail": "the network has no finite answer to this input",
        "id": 4,
    }


def test_a_body_that_grows_without_end_is_cut_off(served):
    """Chunks say no size beforehand."""
    assert served.post([b"[" * 4096] * 100 + [NOTHING_MORE]).status == 413


def test_metrics_count_requests_exits_latency_and_savings(served):
    exits = [f'offramp_exits_total{{exit="{exit_index}"}}' for exit_index in range(2)]
    names = [
        'offramp_requests_total{path="/predict",status="200"}',
        'offramp_requests_total{path="/predict",status="422"}',
    ]
    names += [*exits, "offramp_cost_saved_total", 'offramp_request_seconds_count{path="/predict"}']
    before = {name: served.metric(name) for name in names}
    costs = []
    for number in range(5):
        inputs = np.random.default_rng(number).standard_normal((3, SIZE, SIZE))
        costs.append(served.post({"inputs": inputs.tolist()}).json()["cost"])
    served.post({"inputs": [1]})
    grown = {name: served.metric(name) - before[name] for name in names}
    assert grown[names[0]] == 5 and grown[names[1]] == 1
    assert sum(grown[name] for name in exits) == 5
    saved = sum(max(0, 1 - cost) for cost in costs)
    assert grown["offramp_cost_saved_total"] == pytest.approx(saved, abs=1e-4)
    assert grown['offramp_request_seconds_count{path="/predict"}'] == 6
    policy, network = (served.runner.about[name][:16] for name in ("policy", "network"))
    labels = f'network="{network}",policy="{policy}",version="{offramp.__version__}"'
    assert served.metric(f"offramp_policy_info{{{labels}}}") == 1


def test_every_route_is_documented_and_nothing_else_is_offered(served):
    document = served.get("/openapi.json").json()
    for path in (*HEALTH, "/info", "/metrics"):
        assert served.get(path).status == 200
        assert path == "/health" or "get" in document["paths"][path]
    body = document["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert {*body} == {"application/json", "image/png", "image/jpeg", "application/x-npy"}
    fields = document["components"]["schemas"]["Request"]["properties"]
    assert {*fields} == {"id", "inputs", "image"}
    page = served.get("/docs").text
    assert b"openapi.json" in page and b"http" not in page  # nothing from elsewhere
    assert served.get("/predict").status == 405
    assert served.get("/redoc").status == 404
    assert served.get("/health")[:2] == (200, b"ok")
    about = served.get("/info").json()["model"]
    assert about["exits"] == 2 and about["policy"] == served.runner.policy.fingerprint()


def test_a_client_that_goes_away_in_mid_upload_is_no_error(served):
    gone = 'offramp_requests_total{path="/predict",status="499"}'
    before = served.metric(gone)
    served.post([b"12345", GONE])
    assert served.metric(gone) == before + 1
    assert served.metric('offramp_requests_total{path="/predict",status="500"}') == 0


def test_every_answer_is_logged_with_its_id_and_exit(served, caplog):
    caplog.set_level("INFO", "offramp.access")
    client = Client(offramp.serving.app(served.runner))
    client.post({"inputs": np.zeros((3, SIZE, SIZE)).tolist()}, **{"X-Request-ID": "a"})
    client.post(b"{")
    answered, refused = (record.fields for record in caplog.records)
    assert answered["status"] == 200 and answered["exit"] in (0, 1)
    assert refused["status"] == 400 and "exit" not in refused and refused["path"] == "/predict"


def test_arrays_of_numpy_are_answered_like_their_numbers(served):
    (inputs,) = NORMALIZATION(random_pixels(1, seed=5))
    file = io.BytesIO()
    np.save(file, inputs)
    assert served.post(file.getvalue(), "application/x-npy").json() == (
        served.post({"inputs": inputs.tolist()}).json()
    )


def test_images_are_decoded_as_far_as_there_is_room_for_their_pixels(served, monkeypatch):
    """Sixteen at once, of which each takes the whole room."""
    now, most = [0], [0]
    decode = ImageReader.inputs_from

    def watched(self, encoded):
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.01)
        now[0] -= 1
        return decode(self, encoded)

    monkeypatch.setattr(ImageReader, "inputs_from", watched)
    file = io.BytesIO()
    Image.new("RGB", (70, 70)).save(file, "PNG")
    with ThreadPoolExecutor(16) as clients:
        answers = clients.map(lambda _: served.post(file.getvalue(), "image/png"), range(16))
        assert {each.status for each in answers} == {200}
    assert most[0] == 1


def test_the_key_of_the_server_is_asked_for(served, monkeypatch):
    monkeypatch.setenv("OFFRAMP_API_KEY", "key")
    client = Client(offramp.serving.app(served.runner))
    body = {"inputs": np.zeros((3, SIZE, SIZE)).tolist()}
    assert client.post(body).status == 401
    assert client.post(body, **{"X-API-Key": "other"}).status == 401
    assert client.post(body, **{"X-API-Key": "key"}).status == 200
    assert client.post(body, **{"Authorization": "Bearer key"}).status == 200
    open_to_all = ["/health", "/health/live", "/health/ready", "/docs", "/openapi.json"]
    assert {client.get(path).status for path in open_to_all} == {200}
    assert {client.get(path).status for path in ("/info", "/metrics")} == {401}


def test_guesses_of_the_token_are_throttled(served, monkeypatch):
    monkeypatch.setenv("OFFRAMP_ADMIN_TOKEN", TOKEN)
    client = Client(offramp.serving.app(served.runner))
    tokens = [*(f"guess-{number}" for number in range(12)), TOKEN]
    found = [
        client.request("PUT", "/admin/budget", {"budget": 0.5}, Authorization=f"Bearer {token}")
        for token in tokens
    ]
    assert [each.status for each in found] == [401] * 10 + [429] * 3
    assert 0 < int(found[-1].headers["retry-after"]) <= 60


def test_the_budget_changes_with_a_token_only(served):
    points = served.runner.policy.points
    assert served.admin("PUT", "/admin/budget", {"budget": 1.0}, token="wrong")[0] == 401
    status, body = served.admin("PUT", "/admin/budget", {"budget": 7})
    assert status == 422 and "in (0, 1], got 7" in body["detail"]
    for body in ({"budget": True}, {"budget": "no"}, {"budgets": 1}, b"[]", b"[" * 5000):
        assert served.admin("PUT", "/admin/budget", body)[0] == 422
    assert served.admin("PUT", "/admin/budget", b"{")[0] == 400
    before = served.metric("offramp_budget")
    for budget in (1.0, 0.75):
        status, about = served.admin("PUT", "/admin/budget", {"budget": budget})
        expected = float(points.budgets[points.for_budget(budget)])
        assert status == 200 and about["budget"] == pytest.approx(expected)
        inputs = NORMALIZATION(random_pixels(16, seed=3))
        answers = [served.post({"inputs": x.tolist()}).json() for x in inputs]
        runner = offramp.Runner(served.runner.network, served.runner.policy.at(budget=budget))
        assert [each["exit"] for each in answers] == runner(inputs).exits.tolist()
    assert served.metric("offramp_budget") == before


def test_other_machines_change_nothing_unless_they_may(served):
    far = Client(served.app, host="192.0.2.1")
    found = far.request("PUT", "/admin/budget", {"budget": 1.0}, Authorization=f"Bearer {TOKEN}")
    assert found.status == 403 and "the server's own machine" in found.json()["detail"]
    far = Client(offramp.serving.app(served.runner, AppConfig(remote_admin=True)), "192.0.2.1")
    sent = {"budget": 0.75}
    found = far.request("PUT", "/admin/budget", sent, Authorization=f"Bearer {TOKEN}")
    assert found.status == 200


def test_without_a_token_nothing_can_be_changed(served, monkeypatch):
    monkeypatch.delenv("OFFRAMP_ADMIN_TOKEN")
    found = Client(offramp.serving.app(served.runner)).request("PUT", "/admin/budget", {})
    assert found.status == 403
    assert "nothing can be changed: start the server with a token" in found.json()["detail"]


def test_the_policy_is_read_again_without_a_restart(served):
    old = served.runner.policy
    new = policy_of(served.runner.network, offramp.scorers.Entropy())
    new.at(budget=1.0).save(served.folder / "policy")
    zeros = {"inputs": np.zeros((3, SIZE, SIZE)).tolist()}
    try:
        status, about = served.admin("POST", "/admin/reload")
        assert status == 200 and about["policy"] == new.fingerprint()
        assert served.post(zeros).status == 200
        (served.folder / "policy" / "policy.json").write_text("{")
        status, body = served.admin("POST", "/admin/reload")
        assert status == 409 and "nothing was changed" in body["detail"]
        assert served.post(zeros).status == 200
    finally:
        for file in (served.folder / "policy").iterdir():
            file.unlink()
        old.save(served.folder / "policy")
        assert served.admin("POST", "/admin/reload")[1]["policy"] == old.fingerprint()


def test_a_live_runner_of_any_network_is_served(monkeypatch):
    """Also one whose backbone no file could name."""
    monkeypatch.setenv("OFFRAMP_ADMIN_TOKEN", TOKEN)
    blocks = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()]
    backbone = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64, 3))
    network = offramp.attach(backbone, example=torch.zeros(2, 1, 8, 8))
    data = TensorDataset(torch.randn(60, 1, 8, 8), torch.arange(60) % 3)
    held_out, val, _ = offramp.record(network, data, "all", progress=False).partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    runner = offramp.Runner(network, policy.at(budget=1.0))
    client = Client(offramp.serving.app(runner, reading=Reading(class_names=("a", "b", "c"))))
    answer = client.post({"inputs": torch.zeros(1, 8, 8).tolist()}).json()
    assert answer["name"] == "abc"[answer["class"]]
    assert runner.stats.samples == 1
    found = client.request("POST", "/admin/reload", Authorization=f"Bearer {TOKEN}")
    assert found.status == 409 and "has no folders to read" in found.json()["detail"]


def quick(batch):
    return [(len(text) > 4, 0.9 if len(text) != 5 else 0.55) for text in batch]


def slow(batch):
    if any("crash" in text for text in batch):
        raise RuntimeError
    return [(text.startswith("long"), 0.99) for text in batch]


def cascade_of(*models):
    costs = (1.0, 9.0)
    members = [Member(model, cost=cost) for model, cost in zip(models, costs, strict=True)]
    return offramp.Cascade(members, unit="dollars", backoff=0)


def test_a_cascade_is_served(monkeypatch):
    monkeypatch.setenv("OFFRAMP_ADMIN_TOKEN", TOKEN)
    cascade = cascade_of(quick, slow)
    words = ["long word", "abc", "tiny!", "b"] * 30
    ledger = cascade.record((words, [w.startswith("long") for w in words]), split="all")
    held_out, val, _ = ledger.partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val).at(budget=0.5)
    app = offramp.serving.app(
        cascade, AppConfig(concurrency=8), policy=policy, read_item=str.strip
    )
    client = Client(app)
    found = client.post({"item": " abc ", "id": 3})
    first = found.json()
    assert (found.status, first["id"], first["answer"], first["member"]) == (
        *(200, 3, False),
        "quick",
    )
    second = client.post({"item": "tiny!"}).json()
    assert (second["member"], second["exit"], second["answer"]) == ("slow", 1, False)
    assert first["cost"] == pytest.approx(1 / 9) and second["cost"] == pytest.approx(10 / 9)
    fallen = client.post({"item": "crash"}).json()  # five letters: quick is unsure
    assert (fallen["member"], fallen["failures"]) == ("quick", ["slow"])
    for wanted in ({"text": "abc"}, {"item": 5}):
        assert client.post(wanted).status == 422
    assert "give `item`" in client.post({"text": "abc"}).json()["detail"]
    assert client.metric('offramp_exits_total{exit="0"}') == 1  # where it stopped asking
    assert client.metric('offramp_exits_total{exit="1"}') == 2
    found = client.request(
        "PUT", "/admin/budget", {"budget": 1.0}, Authorization=f"Bearer {TOKEN}"
    )
    assert found.json()["members"] == ["quick", "slow"]


def test_a_cascade_of_which_every_model_fails_asks_to_come_back():
    working = cascade_of(quick, slow)
    ledger = working.record((["abc", "tiny!", "long word"] * 30, [False, False, True] * 30), "all")
    held_out, val, _ = ledger.partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val).at(budget=0.5)
    client = Client(offramp.serving.app(working, policy=policy))
    found = client.post({"item": 5, "id": 1})  # not even the length of it can be taken
    assert found.status == 503 and found.headers["retry-after"] == "1"
    assert found.json()["id"] == 1
    assert "every model failed: quick, slow" in found.json()["detail"]


def test_answers_of_a_cascade_are_json():
    """Numbers and arrays of NumPy are, too; what is not is refused alone."""
    answers = {"number": np.int64(3), "array": np.arange(2), "error": ValueError()}

    def first(names):
        return [(answers[name], np.float32(0.9), np.float32(2)) for name in names]

    def second(names):
        return [(name, 0.99, 4.0) for name in names]

    cascade = offramp.Cascade([first, second], normalise=str)
    names = ["number", "array"] * 30
    ledger = cascade.record((names, names), split="all")
    held_out, val, _ = ledger.partition()
    policy = offramp.Policy(offramp.MaxProbability()).fit(held_out).tune(val, "geometric")
    client = Client(offramp.serving.app(cascade, policy=policy.at_point(0)))
    found = [client.post({"item": name}) for name in answers]
    assert [each.status for each in found] == [200, 200, 500]
    assert [each.json()["answer"] for each in found[:2]] == [3, [0, 1]]
    assert [each.json()["cost"] for each in found[:2]] == [0.5, 0.5]
    assert found[2].json()["detail"] == "`first` answered with a ValueError, which is not JSON"


def test_a_cascade_is_refused_without_its_own_policy(splits):
    cascade = offramp.Cascade([lambda batch: batch, lambda batch: batch])
    with pytest.raises(ConfigError, match=r"serve\(cascade, policy=policy\)"):
        offramp.serving.app(cascade)
    with pytest.raises(ConfigError, match="or a Cascade can be served, got Linear"):
        offramp.serving.app(torch.nn.Linear(2, 2))
    other = offramp.Policy(offramp.MaxProbability()).fit(splits["held_out"])
    with pytest.raises(NetworkError):
        offramp.serving.app(cascade, policy=other.tune(splits["val"]).at(budget=0.5))


def test_a_policy_of_another_network_is_refused(served, tmp_path):
    torch.manual_seed(1)
    other = offramp.build("convnet", num_classes=4, image_size=SIZE, at=2).eval()
    with pytest.raises(OriginError, match="this policy is for the network"):
        Model(other.save(tmp_path / "other"), served.folder / "policy").runner()
    names = Reading(class_names=("a",))
    with pytest.raises(ConfigError, match="a name for each of the 4 classes, got 1"):
        Model(served.folder / "network", served.folder / "policy", reading=names).runner()


def test_a_network_without_torch_names_the_pip_command(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "offramp.networks.network")
    network, policy = small.folder / "network", small.folder / "policy"
    for load in (Model(network, policy).runner, partial(Model.of_run, network, policy)):
        with pytest.raises(MissingExtraError, match=r"pip install 'offramp\[torch\]'"):
            load()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    (tmp_path / "export").mkdir()
    with pytest.raises(FileFormatError, match=r"no folder .*exprt on .*; did you mean .*export"):
        Model.of_run(tmp_path / "exprt")


def test_a_model_is_a_network_and_a_policy_or_an_export(tmp_path):
    with pytest.raises(ConfigError, match=r"is no export, .* give the folder of a policy, too"):
        Model.of_run(tmp_path)
