"""What a server takes: every request is checked here, before anything runs on it.

What is wrong with a request is raised as an `HTTPException` of starlette, with its status.

Nothing in a request can name a file, an address or code. Sizes are limited before memory is
spent: bodies while they are read, pixels before an image is decoded.
"""

import base64
import binascii
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.exceptions import HTTPException

from offramp.data.decoding import Tokenizer
from offramp.errors import ConfigError, NetworkError
from offramp.extras import require
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.serving.images import ImageReader

Array = npt.NDArray[Any]
ReadItem = Callable[[Any], Any]
"""Turns what stands under `item` in a request into an item as the models of a cascade take it."""

IMAGE_TYPES = ("image/png", "image/jpeg")
FORMATS = ("PNG", "JPEG")
MAX_ID = 200  # characters
# Tokenizers of `transformers` may not be called by two threads at once. Not kept in a parser,
# which is sent to other machines.
_TOKENIZING = Lock()


@dataclass(frozen=True, eq=False)
class Query:
    """One sample to answer."""

    id: str | int | None  # the client's name for it, returned with the answer
    # without a batch dimension: `pixels` (uint8), `inputs`, the arrays of a text, or an `item`
    arrays: dict[str, Any]


def is_answered(record: Mapping[str, Any]) -> bool:
    """Whether a worker's record of a query has an answer: a class, or whatever a cascade says."""
    return record.get("class", record.get("answer")) is not None


@dataclass(frozen=True)
class RequestParser:
    """Turns requests into samples, or says what is wrong with them."""

    inputs: Inputs  # what the network takes
    # how images are brought to its size; None if it takes no image files
    images: ImageReader | None = None
    tokenizer: Tokenizer | None = None  # makes tokens of texts; None if only tokens are taken
    max_pixels: int = 16_000_000  # size limit of an image as it is sent

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, ImageInput | TensorInput | TextInput):
            raise ConfigError(
                "a network that does not know its inputs cannot be served: attach it with an "
                "example, or build it by name"
            )

    def parse(self, content_type: str, body: bytes, request_id: str | None = None) -> Query:
        """Read the sample in a body; an `id` in JSON takes precedence over one from a header."""
        if _media_type(content_type) in IMAGE_TYPES:
            return Query(_checked_id(request_id), {"pixels": self._pixels(body)})
        found, fields = json_query(content_type, body, request_id, IMAGE_TYPES)
        return Query(found, self._arrays(fields))

    def _arrays(self, fields: dict[str, Any]) -> dict[str, Array]:
        if isinstance(self.inputs, TextInput):
            return self._text(self.inputs, fields)
        if set(fields) == {"image"} and self.images is not None:
            return {"pixels": self._pixels(_decoded_base64(fields["image"]))}
        if set(fields) != {"inputs"}:
            known = "`inputs`" if self.images is None else "`image` (base64) or `inputs`"
            raise HTTPException(
                422, f"give {known}, and optionally `id`, got the fields {_names(fields)}"
            )
        return {"inputs": self._array(fields["inputs"])}

    def _array(self, values: object) -> Array:
        inputs = self.inputs
        shape, dtype = getattr(inputs, "shape", ()), np.dtype(np.float32)
        if isinstance(inputs, ImageInput):
            shape = (inputs.channels, inputs.height, inputs.width)
        if isinstance(inputs, TensorInput):
            dtype = np.dtype(inputs.dtype)
        array = _numbers("inputs", values, dtype)
        if array.shape != tuple(shape):
            raise HTTPException(
                422, f"`inputs` must have the shape {list(shape)}, got {list(array.shape)}"
            )
        return array

    def _text(self, inputs: TextInput, fields: dict[str, Any]) -> dict[str, Array]:
        if set(fields) == {"text"}:
            return self._tokens(inputs, fields["text"])
        allowed = {"input_ids", "attention_mask", *(["token_type_ids"] * inputs.segments)}
        if "input_ids" not in fields or not set(fields) <= allowed:
            text = "`text`, or " * (self.tokenizer is not None)
            raise HTTPException(
                422,
                f"give {text}`input_ids`, and optionally {_names(allowed - {'input_ids'})}, got "
                f"the fields {_names(fields)}",
            )
        arrays = {key: _numbers(key, v, np.dtype(np.int64)) for key, v in fields.items()}
        ids = arrays["input_ids"]
        if ids.ndim != 1 or not len(ids) >= 1 or ids.min() < 0 or ids.max() >= inputs.vocabulary:
            raise HTTPException(
                422, f"`input_ids` must be a list of numbers in 0..{inputs.vocabulary - 1}"
            )
        try:
            inputs.begin({key: value[None] for key, value in arrays.items()})
        except NetworkError as error:
            raise HTTPException(422, str(error)) from None
        arrays.setdefault("attention_mask", np.ones_like(ids))
        return arrays

    def _tokens(self, inputs: TextInput, text: object) -> dict[str, Array]:
        """What the tokenizer makes of one text, cut off at the network's limit."""
        if self.tokenizer is None:
            raise HTTPException(
                422, "this server has no tokenizer: send `input_ids`, or start it with one"
            )
        if not isinstance(text, str) or not text.strip():
            raise HTTPException(422, "`text` must be a string that is not empty")
        with _TOKENIZING:
            tokens = self.tokenizer(
                [text], truncation=True, max_length=inputs.max_length, return_tensors="np"
            )
        kept = ("input_ids", "attention_mask", *(["token_type_ids"] * inputs.segments))
        return {name: np.asarray(tokens[name])[0] for name in kept if name in tokens}

    def _pixels(self, encoded: bytes) -> Array:
        """Uint8 `[3, S, S]` of a PNG or JPEG."""
        if self.images is None:
            raise HTTPException(
                415, "this network does not take images, or does not know how they are read"
            )
        self._check_size(encoded)
        pixels = self.images.decode(encoded)
        if pixels is None:
            raise HTTPException(422, "the image is damaged and cannot be decoded")
        return pixels

    def _check_size(self, encoded: bytes) -> None:
        """Read the header only, and refuse images that are too large."""
        pillow = require("PIL.Image", extra="serve")
        try:
            with pillow.open(io.BytesIO(encoded), formats=FORMATS) as image:
                width, height = image.size
        except pillow.DecompressionBombError:
            raise self._too_large("far more") from None
        except Exception:
            raise HTTPException(422, "the image is not a readable PNG or JPEG") from None
        if width * height > self.max_pixels:
            raise self._too_large(f"{width} x {height}")

    def _too_large(self, found: str) -> HTTPException:
        limit = f"{self.max_pixels:,}"
        return HTTPException(
            413, f"images may have {limit} pixels, got {found}: send a smaller one"
        )


@dataclass(frozen=True)
class ItemParser:
    """Turns requests `{"item": ...}` into items of a cascade, or says what is wrong with them."""

    read: ReadItem
    inputs: None = None  # a cascade does not say what its models take

    def parse(self, content_type: str, body: bytes, request_id: str | None = None) -> Query:
        """Read the item in a body of JSON."""
        found, fields = json_query(content_type, body, request_id)
        if set(fields) != {"item"}:
            raise HTTPException(422, "give `item`, and optionally `id`")
        try:
            item = self.read(fields["item"])
        except Exception as error:  # of the user's own function
            raise HTTPException(422, f"the item cannot be read: {error}") from None
        return Query(found, {"item": item})


Parser = RequestParser | ItemParser


def json_query(
    content_type: str, body: bytes, request_id: str | None, others: Sequence[str] = ()
) -> tuple[str | int | None, dict[str, Any]]:
    """The id and the other fields of a body of JSON; `others` are named where it is none."""
    kind = _media_type(content_type)
    if kind != "application/json":
        known = ", ".join(("application/json", " or ".join(others))[: 1 + bool(others)])
        raise HTTPException(415, f"the content type must be {known}, got {kind[:80] or 'none'!r}")
    fields = _json_object(body)
    return _checked_id(fields.pop("id", request_id)), fields


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = msgspec.json.decode(body, type=dict)
    except msgspec.ValidationError as error:
        raise HTTPException(400, f"the body must be a JSON object: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise HTTPException(400, f"the body is not valid JSON: {reason}") from None
    return fields


def _decoded_base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise HTTPException(422, f"`image` must be base64 text, got {type(text).__name__}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise HTTPException(422, "`image` is not valid base64") from None


def _numbers(name: str, values: object, dtype: np.dtype[Any]) -> Array:
    """An array of the dtype; text, null and numbers that it cannot hold are refused."""
    problem = HTTPException(
        422, f"`{name}` must be nested lists of finite numbers, all of the same length"
    )
    if not isinstance(values, list):
        raise problem
    try:
        found = np.asarray(values)
    except (ValueError, OverflowError, RecursionError):
        raise problem from None
    if found.dtype.kind not in ("iuf" if dtype.kind == "f" else "iu"):
        raise problem
    with np.errstate(over="ignore"):
        array = found.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise problem
    return array


def _checked_id(found: object) -> str | int | None:
    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    if isinstance(found, str) and len(found) <= MAX_ID:
        return found
    raise HTTPException(422, f"`id` must be a number or a string of at most {MAX_ID} characters")


def _names(fields: Mapping[str, object] | set[str]) -> str:
    return ", ".join(sorted(str(name)[:40] for name in list(fields)[:8])) or "none"
