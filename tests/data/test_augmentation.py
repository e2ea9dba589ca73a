"""Augmentation: targets that say what is in the picture, and nothing random but the generator."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offramp.data import Augmentation
from offramp.errors import ConfigError

OFF = Augmentation.none()
ONLY = {
    "resize": {"resize": (0.8, 1.2)},
    "crop": {"crop": 0.25},
    "rotation": {"rotation": 30.0},
    "contrast": {"contrast": 0.5},
    "erasing": {"erasing": 1.0},
    "mixup": {"mixup": 1.0},
    "cutmix": {"cutmix": 1.0},
    "flip": {"flip": 1.0},
}


def only(name, **changes):
    settings = {**vars(OFF), **ONLY[name], **changes}
    return Augmentation(**settings)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def one_class_per_channel(count=64, classes=5, size=12):
    """Images whose channel k is 1 everywhere if the class is k, and 0 otherwise."""
    labels = torch.arange(count) % classes
    images = torch.nn.functional.one_hot(labels, classes).float()
    return images[:, :, None, None].expand(-1, -1, size, size).clone(), labels


def photos(count=32, size=16):
    return torch.randn(count, 3, size, size, generator=generator(9)), torch.arange(count) % 4


@pytest.mark.parametrize("settings", [(1.0, 0.0), (0.0, 1.0), (0.3, 0.4), (0.5, 0.5)])
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_mixed_targets_are_the_share_of_each_class_in_the_picture(settings, alpha):
    images, labels = one_class_per_channel()
    changes = {"mixup": settings[0], "cutmix": settings[1], "alpha": alpha}
    augment = Augmentation(**{**vars(OFF), **changes})
    inputs, targets = augment(images, labels, 5, generator())
    torch.testing.assert_close(inputs.mean((2, 3)), targets, atol=1e-5, rtol=0)
    assert (targets.amax(1) < 1).any()


def test_mixup_blends_every_pixel_alike_and_cutmix_replaces_pixels():
    images, labels = one_class_per_channel()
    blended, targets = only("mixup")(images, labels, 5, generator())
    torch.testing.assert_close(blended, targets[:, :, None, None].expand_as(blended))
    cut, _ = only("cutmix")(images, labels, 5, generator())
    assert set(cut.unique().tolist()) == {0.0, 1.0}


@given(st.integers(0, 10_000), st.floats(0.1, 4))
def test_targets_are_distributions(seed, alpha):
    images, labels = one_class_per_channel(count=8, size=5)
    augment = Augmentation(mixup=0.5, cutmix=0.5, alpha=alpha)
    inputs, targets = augment(images, labels, 5, generator(seed))
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    assert (targets >= 0).all() and inputs.isfinite().all()


def test_the_mean_share_of_the_partner_is_half_where_all_are_mixed():
    images, labels = one_class_per_channel(count=4000, size=4)
    _, targets = only("mixup")(images, labels, 5, generator())
    own = targets[torch.arange(4000), labels].mean()
    assert own.item() == pytest.approx(0.6, abs=0.02)  # a fifth of the partners is alike


def test_without_mixing_targets_are_one_hot():
    images, labels = photos()
    _, targets = Augmentation(mixup=0, cutmix=0)(images, labels, 4, generator())
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, 4).float())


def test_everything_off_changes_nothing():
    images, labels = photos()
    inputs, _ = OFF(images, labels, 4, generator())
    assert torch.equal(inputs, images)


def test_light_moves_and_flips_and_mixes_nothing():
    images, labels = photos()
    inputs, targets = Augmentation.light()(images, labels, 4, generator())
    assert not torch.equal(inputs, images)
    assert set(targets.flatten().tolist()) == {0.0, 1.0}


def test_light_moves_by_whole_pixels_and_blurs_nothing():
    images = 1 + torch.arange(2 * 3 * 6 * 8.0).view(2, 3, 6, 8)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        moved, _ = Augmentation.light()(images, torch.tensor([0, 1]), 2, generator)
        values = moved.unique()
        values = values[values > 0.01]  # beyond the edge, images are 0
        nearest = (values[:, None] - images.flatten()).abs().amin(1)
        assert float(nearest.max()) < 0.01


def test_crops_reach_over_every_edge_alike():
    images, labels = torch.zeros(2000, 1, 32, 32), torch.zeros(2000, dtype=torch.int64)
    images[:, :, 16, 16] = 1.0
    moved, _ = only("crop")(images, labels, 1, generator())
    for side in (2, 3):
        place = moved.sum((1, 5 - side)).argmax(1) - 16.0
        assert place.abs().max() == 8, "a quarter of the side"
        assert place.mean().abs() < 0.5


def test_soft_targets_are_mixed_as_labels_are():
    images, labels = torch.rand(6, 3, 8, 8), torch.arange(6) % 4
    augment = Augmentation(mixup=0.5, cutmix=0.5)
    hard, soft = (
        augment(images, targets, 4, torch.Generator().manual_seed(0))
        for targets in (labels, torch.nn.functional.one_hot(labels, 4).double())
    )
    for one, other in zip(hard, soft, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ONLY)
def test_each_operation_changes_images_and_leaves_the_originals_alone(name):
    images, labels = photos()
    before = images.clone()
    inputs, _ = only(name)(images, labels, 4, generator())
    assert torch.equal(images, before)
    assert inputs.shape == images.shape and inputs.dtype == images.dtype
    assert not torch.equal(inputs, images)


def test_the_generator_alone_decides():
    images, labels = photos()
    augment = Augmentation(flip=0.5)
    torch.manual_seed(1)
    first = augment(images, labels, 4, generator(3))
    torch.manual_seed(2)
    second = augment(images, labels, 4, generator(3))
    other = augment(images, labels, 4, generator(4))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])


def test_the_global_generator_is_left_alone():
    images, labels = photos()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Augmentation()(images, labels, 4, generator())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("shape", [(8, 8), (6, 10)])
def test_flip_mirrors(shape):
    images = torch.randn(3, 2, *shape)
    inputs, _ = only("flip")(images, torch.zeros(3, dtype=torch.int64), 1, generator())
    torch.testing.assert_close(inputs, images.flip(3), atol=1e-5, rtol=1e-5)


def test_a_tiny_rotation_moves_almost_nothing():
    images = torch.randn(400, 1, 6, 6)
    labels = torch.zeros(400, dtype=torch.int64)
    inputs, _ = only("rotation", rotation=1e-4)(images, labels, 1, generator())
    torch.testing.assert_close(inputs, images, atol=1e-3, rtol=0)


def test_contrast_keeps_the_mean_and_scales_the_spread():
    images, labels = photos()
    inputs, _ = only("contrast")(images, labels, 4, generator())
    torch.testing.assert_close(inputs.mean((1, 2, 3)), images.mean((1, 2, 3)), atol=1e-5, rtol=0)
    factor = inputs.std((1, 2, 3)) / images.std((1, 2, 3))
    assert 0.5 <= factor.min() < 0.8 and 1.2 < factor.max() <= 1.5


def test_erasing_sets_a_rectangle_to_zero():
    images, labels = torch.ones(200, 3, 16, 16), torch.zeros(200, dtype=torch.int64)
    inputs, _ = only("erasing", erasing=0.5)(images, labels, 1, generator())
    erased = (inputs == 0).float().mean((1, 2, 3))
    assert set(inputs.unique().tolist()) == {0.0, 1.0}
    assert 0.35 < (erased > 0).float().mean() < 0.55 and erased.max() <= 0.27


def test_resizing_enlarges():
    image = torch.zeros(300, 1, 16, 16)
    image[:, :, 6:10, 6:10] = 1
    labels = torch.zeros(300, dtype=torch.int64)
    large, _ = only("resize", resize=(1.5, 1.5))(image, labels, 1, generator())
    small, _ = only("resize", resize=(0.7, 0.7))(image, labels, 1, generator())
    assert large.sum((1, 2, 3)).median() > 16 * 1.5
    assert small.sum((1, 2, 3)).median() < 16 * 0.7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip": 1.5}, r"`flip` must lie in \[0, 1\], got 1.5"),
        ({"mixup": 0.7, "cutmix": 0.6}, r"`mixup` \+ `cutmix` must be at most 1, got 0.7 \+ 0.6"),
        ({"resize": (1.2, 0.8)}, "`resize` must be 0 < smallest <= largest"),
        ({"alpha": 0}, "`alpha` must be above 0, got 0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Augmentation(**settings)


def test_only_images_can_be_augmented():
    with pytest.raises(ConfigError, match=r"augmentation is for images .*got \[4, 2\]"):
        Augmentation()(torch.rand(4, 2), torch.zeros(4, dtype=torch.int64), 1, generator())
