"""Several networks as one: each sees the images at its own size, and the last can run alone."""

import json

import pytest
import torch
from torch.nn.functional import avg_pool2d

import offramp
from offramp.errors import FileFormatError, NetworkError
from offramp.networks import EarlyExitNetwork, build, chain, count_macs
from offramp.networks.passes import resized
from offramp.probes import plain_policy
from offramp.profile import Profile, profile
from offramp.runtime import Runner

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
        resized(torch.full((1, 3, 16, 16), 0.3), (size, size)), torch.tensor(0.3)
    )


def test_budgets_are_shares_of_the_last_network_alone(parts, both):
    costs, (small, large) = count_macs(both), map(count_macs, parts)
    assert costs.reference == large.reference
    assert costs.stages == small.stages + large.stages
    assert costs.keep([3]).cumulative.tolist() == [large.reference]
    # What the first network would still have done is not run.
    assert costs.keep([0, 3]).cumulative[-1] == small.cumulative[0] + large.reference


@pytest.mark.parametrize("kept", [[3], [1, 3], [0, 2, 3], [2]])
def test_what_no_kept_exit_needs_is_gone(parts, both, kept):
    part = both.keep_exits(kept)
    assert torch.equal(part(IMAGES), both(IMAGES)[:, kept])
    assert count_macs(part).stages == count_macs(both).keep(kept).stages
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
    with pytest.raises(FileFormatError, match="networks have backbones of their own"):
        EarlyExitNetwork.load(tmp_path, backbone=torch.nn.Linear(1, 1))


@pytest.mark.parametrize("members", ["one", [1], [{"backbone": 1}]])
def test_a_damaged_description_is_refused(both, tmp_path, members):
    both.save(tmp_path)
    path = tmp_path / "network.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "members": members}))
    with pytest.raises(FileFormatError):
        EarlyExitNetwork.load(tmp_path)


def test_a_chain_of_chains_is_one_chain(parts, both):
    three = chain([both, network(32)])
    assert three.starts == (2, 4) and len(three.members) == 3
    assert torch.equal(three(torch.ones(1, 3, 32, 32))[:, :4], both(torch.ones(1, 3, 16, 16)))


def test_networks_that_do_not_fit_together_are_refused(parts):
    small, _ = parts
    unsized = network(16)
    unsized.inputs = offramp.networks.ImageInput(16, 16, assumed=True)
    for members, message in (
        ([small], "two different networks"),
        ([small, small], "two different networks"),
        ([small, network(16, classes=5)], "same classes"),
        ([small, unsized], "of which size: train or record"),
        ([small, network(16, channels=1)], "same channels"),
        ([small, network(16, head="cascade")], "must not read the logits"),
    ):
        with pytest.raises(NetworkError, match=message):
            chain(members)


def test_a_profile_of_a_chain_prices_the_last_network_alone(both, tmp_path):
    found = profile(both, batch_size=[1, 8], seconds=0)
    assert Profile.load(found.save(tmp_path)) == found
    costs = found.costs(8)
    assert costs.starts == (2,)
    alone = float(costs.keep([3]).cumulative[-1])
    # In the network's own time; both were measured, so only about.
    assert 0.3 * costs.reference < alone < 3 * costs.reference
    assert float(costs.cumulative[-1]) > alone
