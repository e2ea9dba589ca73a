"""What a server takes: every request is checked here, before anything is run on it.

Nothing in a request names a file, an address or code. Sizes are limited before memory is spent:
the body while it is read, the pixels before an image is decoded.
"""

import base64
import binascii
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from offramp.data.images import Decoder
from offramp.errors import ConfigError, NetworkError, OfframpError
from offramp.extras import require
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.serving.images import ImageReader

Array = npt.NDArray[Any]

IMAGE_TYPES = ("image/png", "image/jpeg")
FORMATS = ("PNG", "JPEG")
MAX_ID = 200  # characters


class RequestError(OfframpError):
    """A request that cannot be answered, with the HTTP status that says why.

    Args:
        status: 400 to 499.
        reason: For the one who sent it.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, eq=False)
class Query:
    """One sample to answer.

    Attributes:
        id: What the client calls it; comes back with the answer.
        parts: Arrays without a batch dimension: `pixels` (uint8), `inputs`, or those of a text.
    """

    id: str | int | None
    parts: dict[str, Array]


@dataclass(frozen=True)
class Intake:
    """Turns requests into samples, or says what is wrong with them.

    Args:
        inputs: What the network takes.
        reader: How images are brought to its size; None if it takes no images.
        max_bytes: Of a body.
        max_pixels: Of an image, before it is resized.

    Raises:
        ConfigError: The network does not know its inputs.

    Example:
        >>> intake = Intake(TensorInput((2,)))
        >>> intake.parse("application/json", b'{"id": 7, "inputs": [1, 2]}')
        Query(id=7, parts={'inputs': array([1., 2.], dtype=float32)})
        >>> intake.parse("application/json", b'{"inputs": [1, 2, 3]}')
        Traceback (most recent call last):
        offramp.serving.requests.RequestError: `inputs` must have the shape [2], got [3]
    """

    inputs: Inputs
    reader: ImageReader | None = None
    max_bytes: int = 4 * 2**20
    max_pixels: int = 16_000_000

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, ImageInput | TensorInput | TextInput):
            raise ConfigError(
                "a network that does not know its inputs cannot be served: attach it with an "
                "example, or build it by name"
            )
        if self.max_bytes < 1 or self.max_pixels < 1:
            raise ConfigError(
                f"`max_bytes` and `max_pixels` must be positive, got {self.max_bytes} and "
                f"{self.max_pixels}"
            )

    def parse(self, content_type: str, body: bytes, request_id: str | None = None) -> Query:
        """The sample in a body.

        Args:
            content_type: As the client says.
            body: Of at most `max_bytes`.
            request_id: From a header; an `id` in JSON is preferred.

        Raises:
            RequestError: It cannot be answered.
        """
        kind = content_type.partition(";")[0].strip().lower()
        if kind in IMAGE_TYPES:
            return Query(_checked_id(request_id), {"pixels": self._pixels(body)})
        if kind != "application/json":
            raise RequestError(
                415,
                f"the content type must be application/json, {' or '.join(IMAGE_TYPES)}, got "
                f"{kind[:80] or 'none'!r}",
            )
        fields = _json_object(body)
        found = _checked_id(fields.pop("id", request_id))
        return Query(found, self._parts(fields))

    def _parts(self, fields: dict[str, Any]) -> dict[str, Array]:
        if isinstance(self.inputs, TextInput):
            return self._text(self.inputs, fields)
        if set(fields) == {"image"} and self.reader is not None:
            return {"pixels": self._pixels(_unwrapped(fields["image"]))}
        if set(fields) != {"inputs"}:
            known = "`inputs`" if self.reader is None else "`image` (base64) or `inputs`"
            raise RequestError(
                422, f"give {known}, and `id` if you like, got the fields {_names(fields)}"
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
            raise RequestError(
                422, f"`inputs` must have the shape {list(shape)}, got {list(array.shape)}"
            )
        return array

    def _text(self, inputs: TextInput, fields: dict[str, Any]) -> dict[str, Array]:
        allowed = {"input_ids", "attention_mask", *(["token_type_ids"] * inputs.segments)}
        if "input_ids" not in fields or not set(fields) <= allowed:
            raise RequestError(
                422,
                f"give `input_ids`, and {_names(allowed - {'input_ids'})} if you like, got the "
                f"fields {_names(fields)}",
            )
        parts = {key: _numbers(key, v, np.dtype(np.int64)) for key, v in fields.items()}
        ids = parts["input_ids"]
        if ids.ndim != 1 or not len(ids) >= 1 or ids.min() < 0 or ids.max() >= inputs.vocabulary:
            raise RequestError(
                422, f"`input_ids` must be a list of numbers in 0..{inputs.vocabulary - 1}"
            )
        try:
            batch = {key: torch.from_numpy(value)[None] for key, value in parts.items()}
            inputs.begin(batch)
        except NetworkError as error:
            raise RequestError(422, str(error)) from None
        parts.setdefault("attention_mask", np.ones_like(ids))
        return parts

    def _pixels(self, encoded: bytes) -> Array:
        """Uint8 `[3, S, S]` of a PNG or JPEG."""
        if self.reader is None:
            raise RequestError(415, "this network does not take images")
        self._check_size(encoded)
        try:
            return Decoder(self.reader.size, self.reader.centre)(encoded).numpy()
        except OfframpError:
            raise  # Pillow is missing: that is no fault of the client
        # Pillow raises OSError, SyntaxError, ValueError, struct.error ... for broken files
        except Exception:
            raise RequestError(422, "the image is damaged and cannot be decoded") from None

    def _check_size(self, encoded: bytes) -> None:
        """Only the header is read for this."""
        pillow = require("PIL.Image", extra="serve")
        try:
            with pillow.open(io.BytesIO(encoded), formats=FORMATS) as image:
                width, height = image.size
        except pillow.DecompressionBombError:
            raise self._too_large("far more") from None
        except Exception:
            raise RequestError(422, "the image is not a PNG or JPEG that can be read") from None
        if width * height > self.max_pixels:
            raise self._too_large(f"{width} x {height}")

    def _too_large(self, found: str) -> RequestError:
        reason = f"images may have {self.max_pixels:,} pixels, got {found}: send a smaller one"
        return RequestError(413, reason)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "too many brackets" if isinstance(error, RecursionError) else str(error)
        raise RequestError(400, f"the body is not valid JSON: {reason}") from None
    if not isinstance(fields, dict):
        raise RequestError(400, f"the body must be a JSON object, got a {type(fields).__name__}")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _unwrapped(text: object) -> bytes:
    if not isinstance(text, str):
        raise RequestError(422, f"`image` must be base64 text, got a {type(text).__name__}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(422, "`image` is not valid base64") from None


def _numbers(name: str, values: object, dtype: np.dtype[Any]) -> Array:
    """An array of the dtype; text, gaps and numbers that it cannot hold are refused."""
    problem = RequestError(422, f"`{name}` must be nested lists of finite numbers, all as long")
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
    raise RequestError(422, f"`id` must be a number or a text of at most {MAX_ID} characters")


def _names(fields: Mapping[str, object] | set[str]) -> str:
    return ", ".join(sorted(str(name)[:40] for name in list(fields)[:8])) or "none"
