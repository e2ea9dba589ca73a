"""Corrupted images change more the stronger a corruption is, and always in the same way."""

import pytest
import torch

from offramp.data import ImageData
from offramp.errors import ConfigError
from offramp_paper.corruptions import CORRUPTIONS, STRENGTHS, corrupted


@pytest.fixture(scope="module")
def clean():
    """Smooth images with some detail."""
    torch.manual_seed(0)
    coarse = torch.rand(6, 3, 4, 4)
    smooth = torch.nn.functional.interpolate(coarse, size=32, mode="bilinear")
    pixels = (255 * (0.8 * smooth + 0.2 * torch.rand(6, 3, 32, 32))).byte()
    ids = [str(number) for number in range(6)]
    return ImageData(
        pixels=pixels, labels=torch.arange(6), split="test", sample_ids=ids, num_classes=6
    )


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_stronger_corruptions_change_more(clean, kind):
    everything = torch.arange(6)
    before = clean.pixels.float()
    changes = []
    for strength in STRENGTHS:
        data = corrupted(clean, kind, strength)
        after = data.pixels[everything]
        assert after.dtype == torch.uint8 and after.shape == before.shape
        assert data.sample_ids == clean.sample_ids and torch.equal(data.labels, clean.labels)
        changes.append(float((after - before).abs().mean()))
    assert changes[0] > 0 and changes == sorted(changes)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_an_image_does_not_depend_on_the_others_of_its_batch(clean, kind):
    data = corrupted(clean, kind, 2)
    together, _ = data.batch(torch.tensor([4, 1, 3]))
    for place, row in enumerate((4, 1, 3)):
        assert torch.equal(data[row][0], together[place])


def test_images_can_be_enlarged_afterwards(clean):
    inputs, _ = corrupted(clean, "noise", 5, image_size=64).batch(torch.tensor([0, 2]))
    assert inputs.shape == (2, 3, 64, 64)


def test_unknown_corruptions_are_refused(clean):
    with pytest.raises(ConfigError, match=r"`kind` must be one of noise, blur, .*, got 'fog'"):
        corrupted(clean, "fog", 1)
    with pytest.raises(ConfigError, match="whole number from 1 to 5, got 6"):
        corrupted(clean, "blur", 6)
