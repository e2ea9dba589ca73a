"""What a server takes, and how it refuses everything else."""

import base64
import io
import json
import struct
import zlib

import numpy as np
import pytest
from starlette.exceptions import HTTPException

from offramp.data.decoding import Normalization
from offramp.errors import ConfigError
from offramp.networks.inputs import AnyInput, ImageInput, TensorInput, TextInput
from offramp.serving import ServeConfig
from offramp.serving.images import ImageReader, Reading
from offramp.serving.requests import Picture, array_parser, item_parser, parser_for, text_parser

Image = pytest.importorskip("PIL.Image")

PIXELS = Normalization((0, 0, 0), (1 / 255,) * 3)
IMAGES = array_parser(ImageInput(4, 4), ImageReader(4, normalization=PIXELS), 10_000)
NUMBERS = array_parser(TensorInput((2, 2)), None, 10_000)
COUNTS = array_parser(TensorInput((2,), "int8"), None, 10_000)
TEXT = text_parser(TextInput(max_length=5, vocabulary=10, segments=True), None)
ITEMS = item_parser(str.strip)


def letters(texts, max_length, **_):
    """A tokenizer: the length of each word."""
    rows = [[len(word) for word in text.split()][:max_length] for text in texts]
    return {"input_ids": np.array(rows), "attention_mask": np.ones((1, len(rows[0])))}


SPOKEN = text_parser(TextInput(max_length=5, vocabulary=10), letters)


def png(width=4, height=4, colour=(255, 0, 0), kind="PNG"):
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, kind)
    return file.getvalue()


def read(parser, *request):
    """A query whose picture is decoded, as the application does it."""
    query = parser(*request)
    picture = isinstance(query.sample, Picture)
    return query._replace(sample=query.sample.decoded()) if picture else query


def ask(parser, **fields):
    return read(parser, "application/json; charset=utf-8", json.dumps(fields).encode())


@pytest.mark.parametrize(("kind", "mime"), [("PNG", "image/png"), ("JPEG", "image/jpeg")])
def test_images_are_brought_to_the_networks_size(kind, mime):
    query = read(IMAGES, mime, png(40, 30, kind=kind), "mine")
    assert IMAGES(mime, png(40, 30, kind=kind)).sample.pixels == 1200
    assert query.id == "mine" and query.sample.shape == (3, 4, 4)
    assert query.sample[0].min() > 250 and query.sample[1].max() < 5


def test_an_image_in_json_is_the_same_image():
    wrapped = ask(IMAGES, id=3, image=base64.b64encode(png()).decode())
    assert wrapped.id == 3 and (wrapped.sample == read(IMAGES, "image/png", png()).sample).all()


def test_numbers_are_taken_as_they_are():
    query = ask(NUMBERS, inputs=[[1, 2.5], [-3, 0]])
    assert query.sample.tolist() == [[1.0, 2.5], [-3.0, 0.0]] and query.id is None
    assert query.sample.dtype == np.float32
    assert ask(COUNTS, inputs=[-128, 127]).sample.tolist() == [-128, 127]


@pytest.mark.parametrize("kind", ["<f4", ">f8", "<f2", "<i8", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_numpy_are_taken_in_any_order_of_bytes_and_axes(kind, order):
    array = np.array([[1, 2], [3, 4]], dtype=kind, order=order)
    query = NUMBERS("application/x-npy", npy(array), "mine")
    assert query.id == "mine" and query.sample.dtype == np.float32
    assert query.sample.tolist() == [[1, 2], [3, 4]]


def test_an_id_in_json_comes_before_one_in_a_header():
    body = b'{"inputs": [[1, 2], [3, 4]], "id": %s}'
    assert NUMBERS("application/json", body % b"7", "header").id == 7
    assert NUMBERS("application/json", body % b"null", "header").id == "header"


def test_texts_get_a_mask():
    parts = ask(TEXT, input_ids=[1, 2, 9], token_type_ids=[0, 0, 1]).sample
    assert parts["attention_mask"].tolist() == [1, 1, 1]
    assert parts["input_ids"].dtype == np.int64


def huge_png(side=100_000):
    """A PNG of a few bytes that says it has 10^10 pixels."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [b"IHDR" + head, b"IDAT" + zlib.compress(b"")]
    framed = (
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


JSON, NPY = "application/json", "application/x-npy"
DEEP = b"[" * 200_000
SHAPE = "give `inputs` of the shape"
BAD = {
    "no JSON": (IMAGES, JSON, b"{", 400, "not valid JSON: Input data was truncated"),
    "no text": (IMAGES, JSON, b"\xff\xfe\xfa", 400, "not valid JSON"),
    "half a letter": (NUMBERS, JSON, b'{"id": "\xff"}', 400, "not valid JSON: 'utf-8' codec"),
    "half a pair": (NUMBERS, JSON, rb'{"id": "\ud800 and more"}', 400, "JSON: .*surrogate"),
    "brackets": (ITEMS, JSON, b'{"item":' + DEEP, 400, "nested too deeply"),
    "deep": (NUMBERS, JSON, b'{"inputs":' + DEEP, 422, "Expected `float`, got `array`"),
    "deep, unknown": (NUMBERS, JSON, b'{"a":' + DEEP, 422, "unknown field `a`"),
    "NaN": (NUMBERS, JSON, b'{"inputs": [NaN]}', 400, "JSON: .*invalid char.*12"),
    "a list": (IMAGES, JSON, b"[1]", 422, "Expected `object`, got `array`"),
    "a form": (IMAGES, "multipart/form-data", b"x", 415, "must be application/json or image/png"),
    "no type": (IMAGES, "", b"x", 415, "got ''"),
    "a GIF": (IMAGES, "image/png", png(kind="GIF"), 422, "not a readable PNG or JPEG"),
    "no image": (IMAGES, "image/png", b"import os", 422, "not a readable PNG or JPEG"),
    "half": (IMAGES, "image/png", png(90, 90)[:-40], 422, "damaged and cannot be decoded"),
    "large": (IMAGES, "image/png", png(101, 100), 413, "an image may have 10,000 pixels"),
    "a bomb": (IMAGES, "image/png", huge_png(), 413, "an image may have 10,000 pixels"),
    "image": (NUMBERS, "image/png", png(), 415, "json or application/x-npy, got 'image/png'"),
    "no npy": (NUMBERS, NPY, b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 99, 422, "no array in NumPy's"),
    "npy, pickled": (NUMBERS, NPY, npy(np.array([[{}, 1], [2, 3]])), 422, "hold float32, got"),
    "npy, text": (NUMBERS, NPY, npy(np.array([["a" * 99, ""], ["", ""]])), 422, "hold float32"),
    "npy, large": (NUMBERS, NPY, npy(np.zeros((2, 2)))[:100], 422, "no array in NumPy's"),
    "npy, cut": (NUMBERS, NPY, npy(np.zeros((2, 2)))[:-1], 422, "another size than its header"),
    "npy, shape": (NUMBERS, NPY, npy(np.zeros((2, 3))), 422, r"shape \[2, 2\] .*got \[2, 3\]"),
    "npy, floats": (COUNTS, NPY, npy(np.zeros(2)), 422, "hold int8, got .* of float64"),
    "texts": (
        ITEMS,
        JSON,
        b'{"item": ["' + b"x" * 9000 + b'"' + b',""' * 9000 + b"]}",
        422,
        "too many",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bodies_are_refused_with_a_reason(name):
    parser, kind, body, status, reason = BAD[name]
    with pytest.raises(HTTPException, match=reason) as found:
        read(parser, kind, body)
    assert found.value.status_code == status


RIGHT = [[1, 2], [3, 4]]
FIELDS = [
    (IMAGES, {}, f"{SHAPE} .3, 4, 4., .* or `image` .base64., and optionally `id`"),
    (IMAGES, {"image": "aGk=", "inputs": [[[0] * 4] * 4] * 3}, f"do not fit: {SHAPE}"),
    (IMAGES, {"path": "/etc/passwd"}, f"unknown field `path`: {SHAPE}"),
    (NUMBERS, {"k" * 10_000: 1}, f"unknown field `k{{100,200}}: {SHAPE}"),
    (IMAGES, {"image": "%%"}, r"Invalid base64 .*\$.image"),
    (IMAGES, {"image": 5}, r"Expected `bytes`, got `int` - at `\$.image`"),
    (IMAGES, {"inputs": [[[1.0]]]}, r"length >= 4 - at `\$.inputs.*: give .*shape \[3, 4, 4\]"),
    (NUMBERS, {"inputs": [[1, 2], [3]]}, r"length >= 2 - at `\$.inputs\[1\]`"),
    (NUMBERS, {"inputs": [[1, 2, 3], [3, 4]]}, r"length <= 2 - at `\$.inputs\[0\]`"),
    (NUMBERS, {"inputs": [["1", 2], [3, 4]]}, "Expected `float`, got `str`"),
    (NUMBERS, {"inputs": [[True, 2], [3, 4]]}, "Expected `float`, got `bool`"),
    (NUMBERS, {"inputs": [[1e39, 2], [3, 4]]}, r"`float` <= 3.40\d*e\+38"),
    (NUMBERS, {"inputs": [[-1e39, 2], [3, 4]]}, r"`float` >= -3.40\d*e\+38"),
    (NUMBERS, {"inputs": [[None, 2], [3, 4]]}, "Expected `float`, got `null`"),
    (NUMBERS, {"inputs": {"a": 1}}, "Expected `array`, got `object`"),
    (NUMBERS, {"inputs": [[10**400, 2], [3, 4]]}, "Number out of range"),
    (COUNTS, {"inputs": [1.5, 2]}, "Expected `int`, got `float`"),
    (COUNTS, {"inputs": [128, 2]}, "Expected `int` <= 127"),
    (NUMBERS, {"id": [1], "inputs": RIGHT}, "Expected `int | str | null`, got `array`"),
    (NUMBERS, {"id": True, "inputs": RIGHT}, "Expected `int | str | null`, got `bool`"),
    (NUMBERS, {"id": 10**400, "inputs": RIGHT}, r"at `\$.id`"),
    (NUMBERS, {"id": "x" * 201, "inputs": RIGHT}, "`str` of length <= 200"),
    (TEXT, {"words": "hello"}, "give `input_ids` in 0..9 .and attention_mask, token_type_ids"),
    (TEXT, {"text": "hello"}, "this server has no tokenizer"),
    (SPOKEN, {"text": " "}, "Expected `str` matching"),
    (SPOKEN, {"text": ["a"]}, "Expected `str`, got `array`"),
    (SPOKEN, {"text": "a", "input_ids": [1]}, "do not fit: give `text`, or `input_ids`"),
    (TEXT, {"input_ids": []}, "`array` of length >= 1"),
    (TEXT, {"input_ids": [10]}, r"`int` <= 9 - at `\$.input_ids"),
    (TEXT, {"input_ids": [-1]}, r"`int` >= 0 - at `\$.input_ids"),
    (TEXT, {"input_ids": [1.5]}, "Expected `int`, got `float`"),
    (TEXT, {"input_ids": [1] * 6}, "`array` of length <= 5"),
    (
        TEXT,
        {"input_ids": [1], "attention_mask": [1, 1]},
        "input_ids, attention_mask must have the same length",
    ),
    (TEXT, {"input_ids": [1], "token_type_ids": [2]}, "`int` <= 1"),
    (TEXT, {"attention_mask": [1]}, "do not fit: give `input_ids`"),
    (ITEMS, {}, "do not fit: give `item`, and optionally `id`"),
    (ITEMS, {"item": 5}, "the item cannot be read: descriptor 'strip'"),
]


@pytest.mark.parametrize(("parser", "fields", "reason"), FIELDS)
def test_bad_fields_are_refused_with_a_reason(parser, fields, reason):
    with pytest.raises(HTTPException, match=reason) as found:
        ask(parser, **fields)
    assert found.value.status_code == 422


def test_an_id_of_a_header_may_not_be_long_either():
    with pytest.raises(HTTPException, match="200 characters"):
        IMAGES("image/png", png(), "x" * 201)


def test_a_tokenizer_makes_tokens_of_text():
    query = ask(SPOKEN, text="stop as soon as you can tell")
    assert query.sample["input_ids"].tolist() == [4, 2, 4, 2, 3]  # cut off at the limit


def test_a_network_that_does_not_know_its_inputs_is_not_served():
    with pytest.raises(ConfigError, match="does not know its inputs cannot be served"):
        parser_for(AnyInput(), Reading(), 10_000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drain_timeout": -1}, "`drain_timeout` must be at least 0, got -1"),
        ({"port": 0}, r"`port` must lie in \[1, 65535\], got 0"),
        ({"max_batch": 0}, "`max_batch` must be a whole number of at least 1, got 0"),
        ({"max_bytes": 0}, "`max_bytes` must be a whole number of at least 1, got 0"),
        ({"workers": 0}, "`workers` must be a whole number of at least 1, got 0"),
        (
            {"precision": "half"},
            r"`precision` must be one of auto, .*float16, got 'half'",
        ),
        ({"request_timeout": 0}, r"`request_timeout` must lie in \(0\.002, 86400\], got 0"),
        ({"body_timeout": 0}, "`body_timeout` must be above 0, got 0"),
        ({"batch_wait": 40}, r"`batch_wait` must lie in \[0, 30\), got 40"),
        ({"threads": 0}, "`threads` must be a whole number of at least 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ServeConfig(**settings)


def test_a_server_is_for_this_machine_unless_told_otherwise():
    assert ServeConfig().host == "127.0.0.1"
