"""`quick` goes from a trained network to a measured speed-up, and does nothing twice."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import offramp
from offramp import speed_up
from offramp.advice.best import full_network
from offramp.cli.app import app
from offramp.errors import ConfigError
from offramp.speed_up import QuickConfig, chosen_policy, quick

CONFIG = QuickConfig(
    at=2,
    max_drop=0.02,
    runtime="torch",
    seconds=0.1,
    train=offramp.TrainConfig(epochs=3, patience=None, learning_rate=0.05, device="cpu"),
)


def backbone():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256)),
        *(nn.ReLU(), nn.Linear(256, 3)),
    )


def splits():
    torch.manual_seed(1)
    x = torch.randn(900, 6)
    labels = x[:, :3].argmax(1)
    parts = torch.arange(900).split([300, 200, 200, 200])
    return {
        name: TensorDataset(x[rows], labels[rows])
        for name, rows in zip(speed_up.SPLITS, parts, strict=True)
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder, model, data = tmp_path_factory.mktemp("quick"), backbone(), splits()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(data["train"][:][0]), data["train"][:][1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = quick(model, data, folder, CONFIG, progress=False)
    return folder, model, before, data, found


def test_a_network_comes_out_with_exits_a_plan_and_what_was_measured(made):
    folder, model, before, data, found = made
    assert found.network.num_exits == 2
    x = data["test"][:][0]
    with torch.no_grad():
        assert torch.equal(found.network(x)[:, -1], model.eval()(x))
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    names = [row.name for row in found.rows]
    assert names == ["with exits", "without exits", "exit 0 alone"]
    assert {row.labelled for row in found.rows} == {200}
    text = str(found)
    assert "times as fast as without exits" in text and "Best on val: " in text
    assert (folder / "result" / "bench" / "bench.md").is_file()
    assert offramp.Policy.load(folder / "result" / "policy").network == found.network.fingerprint()


def test_what_was_made_is_not_made_again(made, monkeypatch):
    folder, model, _, data, found = made
    for name in ("record", "profile", "auto", "bench"):
        monkeypatch.setattr(speed_up, name, None)
    again = quick(model, data, folder, CONFIG, progress=False)
    assert again.rows == found.rows and again.plan.best == found.plan.best
    assert again.policy.fingerprint() == found.policy.fingerprint()


def test_the_cheapest_policy_that_keeps_the_accuracy_is_chosen(made):
    plan = made[-1].plan
    for max_drop in (0.0, 0.1, 1.0):
        chosen = chosen_policy(plan, max_drop)
        kept = [
            policy
            for policy in plan.values()
            if policy.points.accuracies[policy.selected] >= policy.points.full_accuracy - max_drop
        ]
        costs = [policy.points.budgets[policy.selected] for policy in kept]
        assert not kept or chosen.points.budgets[chosen.selected] == np.min(costs)


def test_the_network_without_exits_for_a_small_budget_is_not_the_cheapest():
    splits = offramp.synthetic.ledgers(seed=0, samples=500, exits=4)
    held_out, val = splits["held_out"], splits["val"]
    plan = offramp.auto(held_out, val, [0.6, 0.8], ["baseline:smooth"])
    full = full_network(held_out, val)
    plan = replace(plan, policies={0.1: full, **plan.policies})
    assert chosen_policy(plan, 0.02) is not full
    assert chosen_policy(replace(plan, policies={0.1: full}), 0.02) is full


def test_missing_splits_and_data_are_named(made, tmp_path):
    data = {name: each for name, each in made[3].items() if name != "val"}
    with pytest.raises(ConfigError, match=r"held_out, val and test: \['val'\] is missing"):
        quick(backbone(), data, tmp_path, CONFIG, progress=False)
    run = CliRunner().invoke(app, ["quick", "some/model", "--out", str(tmp_path)])
    assert "give --data: what was the model trained on?" in str(run.exception)


def test_the_command_goes_the_whole_way_with_a_saved_network(tmp_path):
    network = offramp.build("convnet", num_classes=10, image_size=20, at=2, width=4)
    network.save(tmp_path / "network")
    command = (
        f"quick {tmp_path}/network --data cluttered-digits --runtime torch --seconds 0.1 "
        f"--out {tmp_path}/out"
    )
    run = CliRunner().invoke(app, command.split())
    assert run.exit_code == 0, run.exception
    assert "times as fast" in run.stdout and "Best on val" in run.stdout
