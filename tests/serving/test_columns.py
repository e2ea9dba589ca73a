"""Columns of a table become what a network takes, or a message that says what to do."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import offramp
from offramp.data.source import Source
from offramp.errors import ConfigError, DataError, FileFormatError, NetworkError, OriginWarning
from offramp.networks.inputs import AnyInput, ImageInput, TensorInput, TextInput
from offramp.registry import CATALOG
from offramp.serving import Model, PolicyPredictor
from offramp.serving.columns import ColumnReader
from offramp.serving.images import ImageReader, Reading

from .conftest import NORMALIZATION, READING, SIZE, pixels

IMAGES = ColumnReader(ImageInput(SIZE, SIZE), READING.image_reader)
GREY = ColumnReader(ImageInput(SIZE, SIZE, channels=1))
ROWS = ColumnReader(TensorInput((6,)))
TEXTS = ColumnReader(TextInput(max_length=5, vocabulary=10))


def objects(*values):
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def png(image):
    file = io.BytesIO()
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(image.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def test_pixels_are_normalised_as_in_training():
    assert np.array_equal(IMAGES({"image": pixels()}), NORMALIZATION(pixels()))


def test_channels_may_come_last():
    reader = ColumnReader(IMAGES.inputs, IMAGES.images, "photo")
    batch = {"photo": pixels().transpose(0, 2, 3, 1)}
    assert np.array_equal(reader(batch), NORMALIZATION(pixels()))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_taken_as_they_are(dtype):
    images = np.random.default_rng(0).normal(size=(4, 3, SIZE, SIZE)).astype(dtype)
    found = IMAGES({"image": images})
    assert found.dtype == np.float32
    assert np.array_equal(found, images.astype(np.float32))


def test_files_are_decoded_as_in_training_and_a_broken_one_fails_alone():
    encoded = [png(image) for image in pixels(2)]
    found = IMAGES({"image": objects(encoded[0], b"no image", None, encoded[1])})
    assert np.array_equal(found[[0, 3]], NORMALIZATION(pixels(2)))
    assert np.isnan(found[[1, 2]]).all()


def test_rows_that_are_arrays_of_their_own_are_stacked():
    found = IMAGES({"image": objects(*pixels())})
    assert np.array_equal(found, NORMALIZATION(pixels()))


def test_integers_become_what_the_network_takes():
    assert ROWS({"inputs": np.arange(12).reshape(2, 6)}).dtype == np.float32
    ids = ColumnReader(TensorInput((2,), "int64"))
    assert ids({"inputs": np.ones((3, 2), dtype=np.int32)}).dtype == np.int64


def test_texts_of_different_lengths_are_padded_and_masked():
    found = TEXTS({"input_ids": objects([1, 2, 3], np.array([4])), "id": np.arange(2)})
    assert found["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    masked = {"input_ids": np.ones((2, 3), int), "attention_mask": np.array([[1, 1, 0]] * 2)}
    assert TEXTS(masked)["attention_mask"].tolist() == [[1, 1, 0]] * 2


BAD = {
    "missing": (IMAGES, {"img": 0, "id": 0}, "no column 'image' to predict from, only id, img"),
    "shapes": (IMAGES, {"image": objects(np.zeros(2), np.zeros(3))}, "'image' differ in shape"),
    "float ids": (TEXTS, {"input_ids": objects([0.5])}, "input_ids must hold lists of integers"),
    "mask": (
        TEXTS,
        {"input_ids": objects([1, 2]), "attention_mask": objects([1])},
        "input_ids, attention_mask must hold .* the same length",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_columns_that_cannot_be_read_are_named(name):
    reader, batch, message = BAD[name]
    with pytest.raises(DataError, match=message):
        reader(batch)


UNFIT = {
    "ints": (IMAGES, np.zeros((1, 3, 8, 8), int), "must be float32, got int64"),
    "grey": (GREY, np.zeros((1, 1, 8, 8), np.uint8), "pixels have to be normalized"),
    "files": (GREY, objects(b"x"), "must be"),
    "words": (ROWS, np.array([["a"] * 6]), "must be"),
    "float ids": (ColumnReader(TensorInput((2,), "int64")), np.ones((1, 2)), "got float64"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_no_number_of_the_network_is_refused_by_it(name):
    """Nothing is rounded, and no pixels are taken for numbers."""
    reader, values, message = UNFIT[name]
    with pytest.raises(NetworkError, match=message):
        reader.inputs.begin(reader({reader.names[0]: values}), counted=True)


def test_a_network_that_does_not_know_its_inputs_is_refused():
    with pytest.raises(ConfigError, match="does not know its inputs cannot read columns"):
        ColumnReader(AnyInput())


def test_a_predictor_adds_what_the_runner_says_and_keeps_the_rest(small):
    images = pixels(30, seed=1)
    broken = NORMALIZATION(images)
    broken[3] = np.nan
    expected = small.runner(broken)
    found = PolicyPredictor(small.model)({"id": np.arange(30), "image": broken})
    assert list(found)[:2] == ["id", "image"] and found["id"].tolist() == list(range(30))
    assert found["prediction"].tolist() == expected.predictions.tolist()
    assert found["exit"].tolist() == expected.exits.tolist()
    assert len(set(found["exit"].tolist()) - {-1}) == 2  # each at its own
    assert found["likely_wrong"].tolist() == expected.likely_wrong.tolist()
    assert np.array_equal(found["confidence"], expected.confidence, equal_nan=True)
    assert np.array_equal(found["cost"], expected.costs)
    assert found["failed"].nonzero()[0].tolist() == [3] and found["prediction"][3] == -1


def test_an_export_answers_columns_as_its_runner_does(small):
    inputs = NORMALIZATION(pixels(9))
    expected = offramp.OnnxRunner(small.export, threads=1)(inputs)
    found = PolicyPredictor(Model(small.export))({"image": inputs})
    assert found["exit"].tolist() == expected.exits.tolist()
    assert found["prediction"].tolist() == expected.predictions.tolist()
    assert np.array_equal(found["confidence"], expected.confidence)


def test_inputs_can_be_left_out(small):
    predict = PolicyPredictor(small.model, keep_inputs=False)
    found = predict({"id": np.arange(2), "image": pixels(2)})
    assert "image" not in found and found["id"].tolist() == [0, 1]


def test_columns_are_never_overwritten(small):
    batch = {"image": pixels(2), "cost": np.ones(2), "exit": np.ones(2)}
    with pytest.raises(DataError, match=r"already have columns named cost, exit: rename them"):
        PolicyPredictor(small.model)(batch)


def test_images_of_another_size_are_refused_by_the_network(small):
    with pytest.raises(NetworkError, match="resize the images to 8x8"):
        PolicyPredictor(small.model)({"image": np.zeros((1, 3, 9, 9), np.uint8)})


def test_a_folder_that_a_machine_lacks_is_named(small):
    with pytest.raises(FileFormatError, match=r"no folder nowhere on .*at the same place"):
        PolicyPredictor(replace(small.model, policy=Path("nowhere")))


def test_a_run_knows_how_its_images_are_read(tmp_path, monkeypatch):
    inputs = ImageInput(20, 20)
    assert Reading.of_run(inputs, tmp_path) == Reading()
    with pytest.warns(OriginWarning, match="normalised as ImageNet's; name the data set"):
        assert Reading().reader_for(inputs, tmp_path) == ImageReader(20)
    Source("imagenet-1k").save(tmp_path)
    test = SimpleNamespace(normalization=NORMALIZATION, class_names=["a", "b"])
    monkeypatch.setattr(Source, "load", lambda source: {"test": test})
    reading = Reading.of_run(inputs, tmp_path)
    centre = CATALOG["imagenet-1k"].centre
    assert reading == Reading(ImageReader(20, centre, NORMALIZATION), ("a", "b"))
    assert reading.reader_for(inputs, tmp_path) is reading.image_reader
    with pytest.raises(NetworkError, match="takes square RGB images, and this one takes"):
        reading.reader_for(GREY.inputs, tmp_path)
