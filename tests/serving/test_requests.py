"""What a server takes, and how it refuses everything else."""

import base64
import io
import json
import struct
import zlib

import numpy as np
import pytest
import torch
from starlette.exceptions import HTTPException

from offramp.errors import ConfigError
from offramp.networks.inputs import AnyInput, ImageInput, TensorInput, TextInput
from offramp.serving import ServeConfig
from offramp.serving.images import ImageReader
from offramp.serving.requests import RequestParser

Image = pytest.importorskip("PIL.Image")

IMAGES = RequestParser(ImageInput(4, 4), ImageReader(4), max_pixels=10_000)
NUMBERS = RequestParser(TensorInput((2, 2)))
TEXT = RequestParser(TextInput(max_length=5, vocabulary=10, segments=True))


def letters(texts, max_length, **_):
    """A tokenizer: the length of each word."""
    rows = [[len(word) for word in text.split()][:max_length] for text in texts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.ones(1, len(rows[0]))}


SPOKEN = RequestParser(TextInput(max_length=5, vocabulary=10), tokenizer=letters)


def png(width=4, height=4, colour=(255, 0, 0), kind="PNG"):
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, kind)
    return file.getvalue()


def ask(parser, **fields):
    return parser.parse("application/json; charset=utf-8", json.dumps(fields).encode())


@pytest.mark.parametrize(("kind", "mime"), [("PNG", "image/png"), ("JPEG", "image/jpeg")])
def test_images_are_brought_to_the_networks_size(kind, mime):
    query = IMAGES.parse(mime, png(40, 30, kind=kind), "mine")
    assert query.id == "mine"
    assert query.arrays["pixels"].shape == (3, 4, 4) and query.arrays["pixels"].dtype == np.uint8
    assert query.arrays["pixels"][0].min() > 250 and query.arrays["pixels"][1].max() < 5


def test_an_image_in_json_is_the_same_image():
    plain = IMAGES.parse("image/png", png()).arrays["pixels"]
    wrapped = ask(IMAGES, id=3, image=base64.b64encode(png()).decode())
    assert wrapped.id == 3 and (wrapped.arrays["pixels"] == plain).all()


def test_numbers_are_taken_as_they_are():
    query = ask(NUMBERS, inputs=[[1, 2.5], [-3, 0]])
    assert query.arrays["inputs"].tolist() == [[1.0, 2.5], [-3.0, 0.0]] and query.id is None


def test_texts_get_a_mask():
    parts = ask(TEXT, input_ids=[1, 2, 9], token_type_ids=[0, 0, 1]).arrays
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


BAD = {
    "no JSON": (IMAGES, "application/json", b"{", 400, "not valid JSON: Input data was truncated"),
    "no text": (IMAGES, "application/json", b"\xff\xfe\xfa", 400, "not valid JSON"),
    "brackets": (IMAGES, "application/json", b'{"a":' + b"[" * 200_000, 400, "nested too deeply"),
    "NaN": (
        NUMBERS,
        "application/json",
        b'{"inputs": [NaN]}',
        400,
        "JSON: .*invalid char.*12",
    ),
    "a list": (
        IMAGES,
        "application/json",
        b"[1]",
        400,
        "a JSON object: .*got `array`",
    ),
    "a form": (IMAGES, "multipart/form-data", b"x", 415, "must be application/json, image/png"),
    "no type": (IMAGES, "", b"x", 415, "got 'none'"),
    "a GIF": (IMAGES, "image/png", png(kind="GIF"), 422, "not a readable PNG or JPEG"),
    "no image": (IMAGES, "image/png", b"import os", 422, "not a readable PNG or JPEG"),
    "half": (IMAGES, "image/png", png(90, 90)[:-40], 422, "damaged and cannot be decoded"),
    "large": (IMAGES, "image/png", png(101, 100), 413, "may have 10,000 pixels, got 101 x 100"),
    "a bomb": (IMAGES, "image/png", huge_png(), 413, "may have 10,000 pixels, got far more"),
    "image": (NUMBERS, "image/png", png(), 415, "this network does not take images"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_bodies_are_refused_with_a_reason(name):
    parser, kind, body, status, reason = BAD[name]
    with pytest.raises(HTTPException, match=reason) as found:
        parser.parse(kind, body)
    assert found.value.status_code == status


FIELDS = [
    (IMAGES, {}, "give `image` .base64. or `inputs`, and optionally `id`, got the fields none"),
    (IMAGES, {"image": "x", "path": "/etc/passwd"}, "got the fields image, path"),
    (IMAGES, {"image": "%%"}, "`image` is not valid base64"),
    (IMAGES, {"image": 5}, "`image` must be base64 text, got int"),
    (IMAGES, {"inputs": [[[1.0]]]}, r"must have the shape \[3, 4, 4\], got \[1, 1, 1\]"),
    (
        NUMBERS,
        {"inputs": [[1, 2], [3]]},
        "must be nested lists of finite numbers, all of the same length",
    ),
    (NUMBERS, {"inputs": [["1", 2], [3, 4]]}, "must be nested lists of finite numbers"),
    (NUMBERS, {"inputs": [[1e39, 2], [3, 4]]}, "must be nested lists of finite numbers"),
    (NUMBERS, {"inputs": [[None, 2], [3, 4]]}, "must be nested lists of finite numbers"),
    (NUMBERS, {"inputs": {"a": 1}}, "must be nested lists of finite numbers"),
    (NUMBERS, {"inputs": [[10**400, 2], [3, 4]]}, "must be nested lists of finite numbers"),
    (NUMBERS, {"id": [1], "inputs": [[1, 2], [3, 4]]}, "`id` must be a number or a string"),
    (NUMBERS, {"id": "x" * 300, "inputs": [[1, 2], [3, 4]]}, "of at most 200 characters"),
    (
        TEXT,
        {"words": "hello"},
        "give `input_ids`, and optionally attention_mask, token_type_ids, got",
    ),
    (TEXT, {"text": "hello"}, "this server has no tokenizer: send `input_ids`"),
    (SPOKEN, {"text": " "}, "`text` must be a string that is not empty"),
    (SPOKEN, {"text": ["a"]}, "`text` must be a string"),
    (SPOKEN, {"word": 1}, "give `text`, or `input_ids`, and optionally"),
    (TEXT, {"input_ids": []}, r"`input_ids` must be"),
    (TEXT, {"input_ids": [11]}, r"`input_ids` must be a list of numbers in 0\.\.9"),
    (TEXT, {"input_ids": [1.5]}, "`input_ids` must be nested lists of finite numbers"),
    (TEXT, {"input_ids": [1] * 6}, "texts may have 5 tokens, got 6"),
    (TEXT, {"input_ids": [1], "attention_mask": [1, 1]}, "must have the shape of `input_ids`"),
]


def test_a_tokenizer_makes_tokens_of_text():
    query = ask(SPOKEN, text="stop as soon as you can tell")
    assert query.arrays["input_ids"].tolist() == [4, 2, 4, 2, 3]  # cut off at the limit


@pytest.mark.parametrize(("parser", "fields", "reason"), FIELDS)
def test_bad_fields_are_refused_with_a_reason(parser, fields, reason):
    with pytest.raises(HTTPException, match=reason) as found:
        ask(parser, **fields)
    assert found.value.status_code == 422


def test_a_network_that_does_not_know_its_inputs_is_not_served():
    with pytest.raises(ConfigError, match="does not know its inputs cannot be served"):
        RequestParser(AnyInput())


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
