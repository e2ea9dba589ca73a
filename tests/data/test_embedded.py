"""`cluttered-digits` and `mixture`: made on the spot, deterministic, with known truths."""

import math
import subprocess
import sys

import pytest
import torch

from offramp.data import Difficulty, cluttered_digits, load, mixture
from offramp.data.splits import SPLITS
from offramp.errors import ConfigError

SMALL = dict.fromkeys(SPLITS, 400)


@pytest.fixture(scope="module")
def digits():
    return cluttered_digits(seed=0, sizes=SMALL)


def test_source_digits_of_the_splits_are_disjoint(digits):
    used = {name: set(data.sources.unique().tolist()) for name, data in digits.items()}
    for one in SPLITS:
        for other in SPLITS:
            assert one == other or not used[one] & used[other]


def test_labels_are_those_of_the_source_digits(digits):
    from sklearn.datasets import load_digits

    target = torch.from_numpy(load_digits().target)
    for data in digits.values():
        assert torch.equal(data.labels, target[data.sources[:, 0]])
        # The digit on top always is of another class
        assert (target[data.sources[:, 1]] != data.labels).all()


def test_digits_depend_on_the_seed_only(digits):
    torch.manual_seed(7)
    again = cluttered_digits(seed=0, sizes=SMALL)
    other = cluttered_digits(seed=1, sizes=SMALL)
    for name in SPLITS:
        assert torch.equal(again[name].pixels, digits[name].pixels)
        assert torch.equal(again[name].labels, digits[name].labels)
        assert not torch.equal(other[name].pixels, digits[name].pixels)


def test_the_share_of_undecidable_images_is_the_one_asked_for():
    splits = cluttered_digits(sizes=SMALL | {"val": 4000}, difficulty=Difficulty(undecidable=0.3))
    share = splits.val.undecidable.float().mean().item()
    assert share == pytest.approx(0.3, abs=4 * math.sqrt(0.3 * 0.7 / 4000))
    assert not (splits.val.undecidable & splits.val.coloured).any()


def test_nothing_tells_which_of_two_digits_is_the_label():
    # Without noise and clutter, swapping the two digits must give images of the same kind: the
    # ink of both is the same, so the brightest pixel does not tell, and neither does the hue
    hard = Difficulty(undecidable=1.0, clutter=0, noise=0.0, ink=(1.0, 1.0), coloured=1.0)
    data = cluttered_digits(sizes=SMALL, difficulty=hard).val
    assert data.undecidable.all() and not data.coloured.any()
    hues = data.pixels.float().amax((2, 3))
    correlation = torch.corrcoef(torch.cat([hues.T, data.labels[None].float()]))[3, :3]
    assert correlation.abs().max() < 4 / math.sqrt(len(data))


def test_pixels_use_the_range(digits):
    inputs, _ = digits.train.batch(torch.arange(400))
    assert inputs.shape == (400, 3, 20, 20)
    assert -0.5 < inputs.mean() < 0.5 and 0.5 < inputs.std() < 1.5


def test_load_gives_the_embedded_digits_with_other_sizes(monkeypatch):
    monkeypatch.setattr("offramp.data.embedded.DIGIT_SIZES", SMALL)
    splits = load("cluttered-digits", seed=3, held_out=30, val=40, image_size=16)
    assert [len(data) for data in splits.values()] == [400, 30, 40, 400]
    assert splits.test[0][0].shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: cluttered_digits(sizes={"val": 0}),
            "`val` must be a whole number of at least 1, got 0",
        ),
        (
            lambda: cluttered_digits(image_size=4),
            "`image_size` must be a whole number of at least 8, got 4",
        ),
        (lambda: Difficulty(undecidable=2), r"`undecidable` must lie in \[0, 1\], got 2"),
        (lambda: mixture(sizes={"dev": 3}), "`sizes` must be one of train, held_out, val, test"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_true_probabilities_are_calibrated_on_what_is_drawn():
    data = mixture(seed=0, sizes={"test": 40_000}).test
    probs = data.probs
    torch.testing.assert_close(probs.sum(1), torch.ones(len(data), dtype=torch.float64))
    for label in range(data.num_classes):
        claimed = probs[:, label]
        for low in (0.0, 0.2, 0.4, 0.6, 0.8):
            inside = (claimed >= low) & (claimed < low + 0.2)
            observed = (data.labels[inside] == label).double().mean()
            tolerance = 4 * 0.5 / math.sqrt(int(inside.sum()))
            assert abs(observed - claimed[inside].mean()) < tolerance


def test_probabilities_are_how_often_labels_are_drawn():
    data = mixture(seed=1, sizes={"test": 100_000}).test
    drawn = float(data.probs.gather(1, data.labels[:, None]).mean())
    assert drawn == pytest.approx(float(data.probs.square().sum(1).mean()), abs=0.003)
    assert drawn < 0.95  # which is not so because all are certain


def test_the_mixture_has_easy_regions_and_hard_ones():
    best = mixture(seed=0).test.probs.amax(1)
    assert (best > 0.95).double().mean() > 0.2
    assert (best < 0.7).double().mean() > 0.1


def test_the_mixture_depends_on_the_seed_only():
    first, again, other = mixture(seed=0), mixture(seed=0), mixture(seed=1)
    assert torch.equal(first.val.inputs, again.val.inputs)
    assert not torch.equal(first.val.inputs, other.val.inputs)


def test_embedded_data_need_no_extra_and_import_none():
    code = (
        "import sys\n"
        "heavy = ('datasets', 'PIL', 'transformers', 'huggingface_hub')\n"
        "import offramp.data\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "sys.modules.update(dict.fromkeys(heavy))  # as if they were not installed\n"
        "sizes = dict.fromkeys(offramp.data.splits.SPLITS, 9)\n"
        "print(offramp.data.cluttered_digits(sizes=sizes).val[0][0].shape)\n"
        "print(offramp.data.load('mixture').val[0][0].shape)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:3] == ["[]", "torch.Size([3, 20, 20])", "torch.Size([2])"]
