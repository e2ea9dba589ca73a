"""Several networks as one: each sees the images at its own size, and the last can run alone."""

import json
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d

import offramp
from offramp.batch_times import BatchTimes
from offramp.errors import FileFormatError, NetworkError
from offramp.files import write_sealed
from offramp.networks import EarlyExitNetwork, attach, build, chain, count_macs
from offramp.networks.chain import at_size
from offramp.report import inspect
from offramp.runtime import Runner
from offramp.timing import Profile, profile
from offramp.timing.runners import plain_policy
from offramp.training import GradientEquilibrium

LAYERS = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
IMAGES = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def network(size, classes=4, **settings):
    torch.manual_seed(size)
    return build("convnet", classes, image_size=size, at=2, **settings).eval()


@pytest.fixture(scope="module")
def parts():
    return network(8), network(16)


@pytest.fixture(scope="module")
def both(parts):
    return chain(parts)


def test_every_network_sees_the_images_at_its_own_size(parts, both):
    small, large = parts
    expected = torch.cat([small(avg_pool2d(IMAGES, 2)), large(IMAGES)], dim=1)
    assert torch.equal(both(IMAGES), expected)
    assert both.exit_names == ("0.blocks.1", "0.last", "1.blocks.1", "1.last")


@pytest.mark.parametrize("size", [16, 8, 6, 24])
def test_images_of_one_colour_stay_as_they_are(size):
    assert torch.allclose(
        at_size(torch.full((1, 3, 16, 16), 0.3), (size, size)), torch.tensor(0.3)
    )


def test_budgets_are_shares_of_the_last_network_alone(parts, both):
    costs, (small, large) = count_macs(both), map(count_macs, parts)
    assert costs.reference == large.reference
    assert costs.stages.tolist() == [*small.stages, *large.stages]
    assert costs.keep([3]).cumulative.tolist() == [large.reference]
    # What the first network would still have done is not run.
    assert costs.keep([0, 3]).cumulative[-1] == small.cumulative[0] + large.reference


@pytest.mark.parametrize("kept", [[3], [1, 3], [0, 2, 3], [2]])
def test_what_no_kept_exit_needs_is_gone(parts, both, kept):
    part = both.keep_exits(kept)
    assert torch.equal(part(IMAGES), both(IMAGES)[:, kept])
    assert np.array_equal(count_macs(part).stages, count_macs(both).keep(kept).stages)
    assert part.starts == count_macs(both).keep(kept).starts


def test_without_exits_only_the_last_network_runs(parts, both, monkeypatch):
    policy = plain_policy(both)
    runner = Runner(both, policy, compile=False)

    def never(*_):
        raise AssertionError("the first network ran")

    monkeypatch.setattr(parts[0].stages[0], "forward", never)
    assert torch.allclose(runner.full(IMAGES), parts[1](IMAGES)[:, -1], atol=1e-5)


@pytest.mark.parametrize("int8", [False, True])
def test_a_chain_is_saved_and_loaded(both, tmp_path, int8):
    both.save(tmp_path, int8=int8)
    again = EarlyExitNetwork.load(tmp_path)
    assert again.starts == (2,) and again.inputs == both.inputs
    assert int8 or again.fingerprint() == both.fingerprint()
    assert torch.allclose(again(IMAGES), both(IMAGES), atol=0.1 if int8 else 0)
    with pytest.raises(FileFormatError, match="needs no backbone"):
        EarlyExitNetwork.load(tmp_path, backbone=torch.nn.Linear(1, 1))


@pytest.mark.parametrize("members", ["one", [1], [{"backbone": 1}]])
def test_a_damaged_description_is_refused(both, tmp_path, members):
    both.save(tmp_path)
    path = tmp_path / "network.json"
    write_sealed(path, {**json.loads(path.read_text()), "members": members})
    with pytest.raises(FileFormatError):
        EarlyExitNetwork.load(tmp_path)


def test_a_chain_of_chains_is_one_chain(parts, both):
    three = chain([both, network(32)])
    assert three.starts == (2, 4) and len(three.members) == 3
    assert torch.equal(three(torch.ones(1, 3, 32, 32))[:, :4], both(torch.ones(1, 3, 16, 16)))


def test_networks_that_do_not_fit_together_are_refused(parts):
    small, _ = parts
    unsized, flat = network(16), attach(nn.Sequential(*LAYERS), example=torch.rand(2, 4))
    unsized.inputs = offramp.networks.ImageInput(16, 16, assumed=True)
    for members, message in (
        ([small], "two networks or more"),
        ([small, small], "none of them twice"),
        ([small, network(16, classes=5)], r"same classes, got \[4, 5\]"),
        ([small, unsized], "of which size their images are: train or record"),
        ([small, network(16, channels=1)], "same channels"),
        ([small, network(16, head="cascade")], "a CascadeHead cannot be a head of a chain"),
        ([small, flat], "for ImageInput, TensorInput"),
        ([chain([small, network(16)]).keep_exits([0, 3]), network(32)], "for KeptImages"),
        ([small, nn.Linear(2, 2)], "a chain needs an EarlyExitNetwork, got Linear"),
    ):
        with pytest.raises(NetworkError, match=message):
            chain(members)


def test_what_a_file_cannot_name_is_not_saved(tmp_path):
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    mine = []
    for size in (8, 16):
        whole = nn.Sequential(*backbone, nn.Linear(4 * (size - 4) ** 2, 4))
        mine.append(attach(whole, example=IMAGES[:2, :, :size, :size]))
    with pytest.raises(NetworkError, match="make yours known with"):
        chain(mine).save(tmp_path)
    one, other = network(8), network(16)
    other.stages[0] = one.stages[0]
    with pytest.raises(NetworkError, match="share weights"):
        chain([one, other]).save(tmp_path)


def test_a_frozen_backbone_keeps_its_classifier_in_every_network(parts, tmp_path):
    both = chain([network(8), network(16)])
    before = {name: tensor.clone() for name, tensor in both.state_dict().items()}
    data = torch.utils.data.TensorDataset(IMAGES, torch.arange(6) % 4)
    config = offramp.TrainConfig(epochs=1, batch_size=6, patience=None)
    offramp.train(both, data, config=config, freeze_backbone=True)
    changed = {n for n, tensor in both.state_dict().items() if not torch.equal(tensor, before[n])}
    assert {name.split(".")[1] for name in changed} == {"0", "2"}


def test_gradients_are_balanced_within_each_network(parts):
    objective, labels = GradientEquilibrium(), torch.arange(6) % 4

    def first_gradient(made, images):
        made.zero_grad()
        objective(objective.logits(made, images), labels).backward()
        return next(small.stages[0].parameters()).grad.clone()

    small, large = network(8), network(16)
    alone = first_gradient(small, avg_pool2d(IMAGES, 2))
    assert torch.allclose(first_gradient(chain([small, large]), IMAGES), alone, atol=1e-6)


def test_a_chain_trains_only_if_all_its_networks_did():
    small, large = network(8).train(), network(16)
    made = chain([small, large])
    assert not any(module.training for each in (made, small, large) for module in each.modules())


def test_inspect_shows_every_network(both, tmp_path):
    facts, exits = inspect(both.save(tmp_path))
    assert "convnet, then convnet" in facts.markdown()
    assert "1.blocks.1" in exits.markdown() and "MACs" in exits.markdown()


def test_whichever_network_comes_first_pays_for_the_call():
    stages, heads = np.array([[0.5], [0.2], [0.3]]), np.full((3, 11), 0.1)
    times = BatchTimes(stages.repeat(11, axis=1), heads, 0.7, starts=(1,), entry=0.1)
    second = times.keep([1, 2])
    assert second.stages[:, -1].tolist() == pytest.approx([0.3, 0.3])
    assert second.costs.stages.tolist() == pytest.approx([0.3, 0.3])
    assert np.array_equal(times.costs.keep([1, 2]).stages, second.costs.stages)
    assert times.costs.alone.tolist() == pytest.approx([0.6, 0.4, 0.7])
    assert offramp.Costs(**times.costs.to_json()) == times.costs
    assert BatchTimes.from_json(times.to_json()).costs == times.costs


def test_a_profile_of_a_chain_prices_the_last_network_alone(both, tmp_path):
    found = profile(both, batch_size=[1, 8], seconds=0, clock=time.process_time, progress=False)
    assert Profile.load(found.save(tmp_path)) == found
    costs = found.at(8).costs
    assert costs.starts == (2,)
    kept = costs.keep([2, 3])
    alone = float(kept.stages.sum() + kept.heads[-1])
    # In the network's own time; both were measured, so only about.
    assert 0.3 * costs.reference < alone < 3 * costs.reference
    assert costs.cumulative[-1] > alone
