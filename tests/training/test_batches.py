"""Who reads the data does not matter."""

import gc
import os
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from offramp import Ledger
from offramp.data.decoding import Decoder
from offramp.data.images_and_texts import ImageData, Pixels
from offramp.errors import CorruptImageError, DataError
from offramp.record import record
from offramp.training.batches import Samples


class Pictures:
    """Six images of 2x2 pixels, one of which may be broken; says which process decodes one."""

    def __init__(self, broken=None):
        self.broken = broken

    def read(self, positions):
        return [b"" if at == self.broken else f"{at} {os.getpid()}".encode() for at in positions]

    def __len__(self):
        return 6

    def name(self, position):
        return f"picture {position}"


class Decode(Decoder):
    """The position and the process as pixels; fails where there is nothing to decode."""

    def __call__(self, encoded):
        at, process = map(int, encoded.split())
        picture = np.array([[at, process % 251], [0, 0]], dtype=np.uint8)
        return np.stack([picture] * 3)


def pictures(broken=None):
    pixels = Pixels(Pictures(broken), Decode())
    labels = torch.arange(6)
    ids = [str(number) for number in range(6)]
    return ImageData(pixels=pixels, labels=labels, split="val", sample_ids=ids, num_classes=6)


@pytest.fixture
def samples(monkeypatch):
    # How long a worker without orders sleeps; it is waited for when the workers end.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    made = []

    def make(data, workers):
        made.append(Samples(data, workers))
        return made[-1]

    yield make
    for each in made:
        each.close()
    gc.collect()  # errors keep loaders, and these their workers


def test_what_a_worker_has_decoded_is_there_for_all(samples):
    data = pictures()
    read = samples(data, 2)
    for _ in range(2):
        labels = torch.cat([labels for _, labels in read.batches(torch.arange(6).split(2))])
        assert labels.tolist() == list(range(6))
    pixels = data.pixels[torch.arange(6)]
    assert pixels[:, 0, 0, 0].tolist() == list(range(6))
    decoders = set(pixels[1:, 0, 0, 1].tolist())  # the first one is read before workers start
    assert len(decoders) == 2
    assert os.getpid() % 251 not in decoders


def test_an_error_in_a_worker_is_the_same_as_without(samples):
    messages = []
    for workers in (0, 1):
        with pytest.raises(CorruptImageError) as caught:
            list(samples(pictures(broken=4), workers).batches(torch.arange(6).split(2)))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith("the image picture 4 cannot be decoded; replace it")


class Deadly(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, position):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_named(samples):
    with pytest.raises(DataError, match=r"reads the data has died .*use fewer workers"):
        list(samples(Deadly(), 1).batches(torch.arange(4).split(2)))


class Plain(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, position):
        return self.data[position]


def test_a_ledger_does_not_depend_on_the_workers(convnet, data):
    loaders = (DataLoader(Plain(data), num_workers=workers) for workers in (0, 2))
    first, second = (
        record(convnet, each, split="val", batch_size=10, progress=False) for each in loaders
    )
    assert np.array_equal(first.logits, second.logits)
    assert np.array_equal(first.labels, second.labels)


def test_tensors_in_memory_are_read_here(samples, data):
    read = samples(data, 2)
    assert len(list(read.batches(torch.arange(64).split(8)))) == 8
    assert read._loader is None


@pytest.mark.parametrize("column", ["image", "img", "pixel_values"])
def test_data_sets_of_hugging_face_in_torch_format_are_read(column):
    datasets = pytest.importorskip("datasets")
    images = torch.arange(4 * 3 * 2 * 2, dtype=torch.float32).view(4, 3, 2, 2)
    data = datasets.Dataset.from_dict({column: images.tolist(), "label": [2, 0, 1, 0]})
    order = torch.tensor([3, 0])
    ((inputs, labels),) = Samples(data.with_format("torch")).batches([order])
    assert torch.equal(inputs, images[order])
    assert labels.tolist() == [0, 2]


def test_logits_and_labels_of_hugging_face_make_a_ledger():
    datasets = pytest.importorskip("datasets")
    logits = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
    columns = {f"exit_{m}": logits[:, m].tolist() for m in range(2)}
    data = datasets.Dataset.from_dict({**columns, "label": [0, 1, 2, 0, 1, 2]})
    for found in (data.with_format("torch"), data.with_format("numpy"), data):
        parts = {name: found[name] for name in columns}
        ledger = Ledger(parts, found["label"], [1, 2], split="val")
        assert np.array_equal(ledger.logits.astype(np.float32), logits)
        assert ledger.labels.tolist() == data[:]["label"]
