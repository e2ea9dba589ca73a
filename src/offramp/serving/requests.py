"""What the server takes: a request becomes a sample of the network here, or a 4xx with a reason.

JSON is decoded into a type that is made for the network: it says which fields there are, how long
every list is and where every number lies. So what does not fit is refused where it is read, before
anything is made of it. Nothing in a request can name a file, an address or code.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from starlette.exceptions import HTTPException

from offramp.arrays import Array
from offramp.data.decoding import Tokenizer, find_tokenizer
from offramp.errors import ConfigError
from offramp.imports import require
from offramp.networks.inputs import ImageInput, Inputs, TensorInput, TextInput
from offramp.serving.images import ImageReader, Reading

ReadItem = Callable[[Any], Any]
"""Turns what stands under `item` in a request into an item as the models of a cascade take it."""

JSON = "application/json"
IMAGES = ("image/png", "image/jpeg")
NPY = "application/x-npy"
FORMATS = ("PNG", "JPEG")  # their names in Pillow
MAX_ID, MAX_REASON = 200, 200  # characters
MOST_LETTERS = 4 * 2**20  # of the array that would be made of the texts of an item
LEAST, MOST = -(2**63), 2**63 - 1  # of whole numbers
Id = Annotated[int, Meta(ge=LEAST, le=MOST)] | Annotated[str, Meta(max_length=MAX_ID)] | None
T = TypeVar("T")

# Tokenizers of `transformers` may not be called by two threads at once.
_TOKENIZING = Lock()


class Query(NamedTuple):
    """A request that was read."""

    id: str | int | None  # the client's name for it, returned with the answer
    sample: Any  # as a `Parser` makes it


class Picture(NamedTuple):
    """A sample that is an image, and not decoded yet."""

    pixels: int  # as it is sent
    decoded: Callable[[], Array]


class Form(NamedTuple):
    """One way in which a sample can be sent."""

    fields: Mapping[str, Any]  # their types by name; only the first has to be there
    read: Callable[..., Any]  # makes the sample of the fields, without a batch dimension


class Parser:
    """Turns requests into samples, or says what is wrong with them.

    Args:
        forms: How a sample can be sent; fields of several forms do not go together.
        wanted: What to give, for messages.
        binary: Reads the sample in a body of NumPy's format, if it may be sent.
    """

    def __init__(
        self, forms: Sequence[Form], wanted: str, binary: Callable[[bytes], Any] | None = None
    ) -> None:
        self._forms, self._binary = forms, binary
        self._wanted = f"give {wanted}, and optionally `id`"
        fields = {name: kind for form in forms for name, kind in form.fields.items()}
        optional = [(name, kind | UnsetType, UNSET) for name, kind in fields.items()]
        self.body: Any = msgspec.defstruct(
            "Request", [("id", Id, None), *optional], forbid_unknown_fields=True
        )
        images = IMAGES if "image" in fields else ()
        self.types = (JSON, *images, *((NPY,) if binary else ()))

    def __call__(self, content_type: str, content: bytes, request_id: str | None = None) -> Query:
        """Read the sample in a body; an `id` in JSON takes precedence over one from a header.

        Raises:
            HTTPException: The request is refused.
        """
        if len(request_id or "") > MAX_ID:
            raise HTTPException(422, f"an id may have {MAX_ID} characters")
        kind = content_type.partition(";")[0].strip().lower()
        if kind not in self.types:
            known = " or ".join(self.types)
            raise HTTPException(415, f"the content type must be {known}, got {kind[:80]!r}")
        if kind == NPY and self._binary is not None:
            return Query(request_id, self._binary(content))
        if kind != JSON:
            return Query(request_id, self._sample({"image": content}))
        values = msgspec.structs.asdict(decoded(content, self.body, self._wanted))
        own_id = values.pop("id")
        given = {name: value for name, value in values.items() if value is not UNSET}
        return Query(request_id if own_id is None else own_id, self._sample(given))

    def _sample(self, given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        for fields, read in self._forms:
            if next(iter(fields)) in given and given.keys() <= fields.keys():
                return read(**given)
        raise HTTPException(422, f"the fields do not fit: {self._wanted}")


def array_parser(
    inputs: ImageInput | TensorInput, images: ImageReader | None, max_pixels: int
) -> Parser:
    """Samples are arrays: numbers as the network takes them, or images.

    Args:
        inputs: What the network takes.
        images: How images become numbers; None where they are not taken.
        max_pixels: Size limit of an image as it is sent.
    """
    if isinstance(inputs, ImageInput):
        inputs = TensorInput((inputs.channels, inputs.height, inputs.width))
    shape, dtype = inputs.shape, inputs.dtype
    wanted = f"`inputs` of the shape {list(shape)}, which are {dtype}"
    numbers = Form(
        {"inputs": nested_lists(shape, np.dtype(dtype))}, lambda inputs: np.asarray(inputs, dtype)
    )
    binary = partial(read_npy, shape=shape, dtype=np.dtype(dtype))
    if images is None:
        return Parser([numbers], wanted, binary)

    def read_image(image: bytes) -> Picture:
        def pixels() -> Array:
            found = images.inputs_from(image)
            if np.isnan(found).any():
                raise HTTPException(422, "the image is damaged and cannot be decoded")
            return found

        return Picture(_pixels(image, max_pixels), pixels)

    forms = [numbers, Form({"image": bytes}, read_image)]
    return Parser(forms, f"{wanted}, or `image` (base64)", binary)


def read_npy(content: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The array in a file of NumPy's format; its header is checked before anything is made of it.

    Example:
        >>> file = io.BytesIO()
        >>> np.save(file, np.arange(3, dtype=np.int16))
        >>> read_npy(file.getvalue(), (3,), np.dtype("float32"))
        array([0., 1., 2.], dtype=float32)
    """
    file = io.BytesIO(content)
    try:
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[np.lib.format.read_magic(file)]
        found, is_columns, kind = read(file)
    except Exception:  # whatever the header makes of Python's parser
        raise HTTPException(422, "the body is no array in NumPy's format (.npy)") from None
    is_number = kind.kind in "fiub" and not kind.hasobject
    if found != shape or not is_number or not np.can_cast(kind, dtype, "same_kind"):
        reason = f"the array must have the shape {list(shape)} and hold {dtype}"
        raise HTTPException(422, f"{reason}, got {list(found)[:8]} of {str(kind)[:40]}")
    rest = content[file.tell() :]
    if len(rest) != kind.itemsize * math.prod(shape):
        raise HTTPException(422, "the array has another size than its header says")
    array = np.frombuffer(rest, kind).reshape(shape, order="F" if is_columns else "C")
    return array.astype(dtype)


def _pixels(encoded: bytes, most: int) -> int:
    """The number of pixels, of which only the header is read; images too large are refused."""
    pillow = require("PIL.Image", extra="serve")
    too_large = HTTPException(413, f"an image may have {most:,} pixels; send a smaller one")
    try:
        with pillow.open(io.BytesIO(encoded), formats=FORMATS) as image:
            width, height = image.size
    except pillow.DecompressionBombError:
        raise too_large from None
    except Exception:
        raise HTTPException(422, "the image is not a readable PNG or JPEG") from None
    if width * height > most:
        raise too_large
    return int(width * height)


def text_parser(inputs: TextInput, tokenizer: Tokenizer | None) -> Parser:
    """Samples are texts: arrays `[length]` by name, as a tokenizer gives them.

    Args:
        inputs: What the network takes.
        tokenizer: Makes tokens of texts, cut off at the network's limit; None where only tokens
            are taken.
    """
    most = {"input_ids": inputs.vocabulary - 1, "attention_mask": 1}
    most |= {"token_type_ids": 1} if inputs.segments else {}
    length = Meta(min_length=1, max_length=inputs.max_length)
    fields = {
        name: Annotated[list[Annotated[int, Meta(ge=0, le=limit)]], length]
        for name, limit in most.items()
    }

    def read_tokens(**given: list[int]) -> dict[str, Array]:
        if len({len(values) for values in given.values()}) != 1:
            raise HTTPException(422, f"{', '.join(given)} must have the same length")
        arrays = {name: np.asarray(values, np.int64) for name, values in given.items()}
        return {"attention_mask": np.ones_like(arrays["input_ids"]), **arrays}

    tokens = Form(fields, read_tokens)
    others = ", ".join([*fields][1:])
    wanted = f"`input_ids` in 0..{inputs.vocabulary - 1} (and {others}, of the same length)"
    if tokenizer is None:
        return Parser([tokens], f"{wanted}; this server has no tokenizer for `text`")

    def read_text(text: str) -> dict[str, Array]:
        with _TOKENIZING:
            found = tokenizer(
                [text], truncation=True, max_length=inputs.max_length, return_tensors="np"
            )
        return {name: np.asarray(found[name])[0] for name in fields if name in found}

    text = Form({"text": Annotated[str, Meta(pattern=r"\S")]}, read_text)
    return Parser([text, tokens], f"`text`, or {wanted}")


def item_parser(read: ReadItem) -> Parser:
    """Samples are items of a cascade, `{"item": ...}`, which `read` makes of the JSON value."""

    def read_item(item: Any) -> Any:  # noqa: ANN401
        leaves, longest = _extent(item)
        if leaves * longest > MOST_LETTERS:
            raise HTTPException(422, "the item has too many texts next to a long one")
        try:
            return read(item)
        except Exception as error:
            reason = str(error)[:MAX_REASON]
            raise HTTPException(422, f"the item cannot be read: {reason}") from None

    return Parser([Form({"item": Any}, read_item)], "`item`")


def _extent(item: Any) -> tuple[int, int]:  # noqa: ANN401 - a value of JSON
    """How many values an item has, and the letters of its longest text.

    An array of texts gives each of them the room of the longest.

    Example:
        >>> _extent([["a", "bcd"], 5])
        (3, 3)
    """
    if isinstance(item, dict):
        item = list(item.values())
    if not isinstance(item, list):
        return 1, len(item) if isinstance(item, str) else 0
    kinds = set(map(type, item))
    if not kinds & {list, dict}:  # without a loop in Python over many values
        texts = item if kinds == {str} else [each for each in item if isinstance(each, str)]
        return len(item), max(map(len, texts), default=0)
    parts = [_extent(each) for each in item]
    return sum(part[0] for part in parts), max(part[1] for part in parts)


def parser_for(inputs: Inputs, reading: Reading, max_pixels: int) -> Parser:
    """The parser for what a network takes; `ConfigError` where the network does not know that."""
    if isinstance(inputs, TextInput):
        words = reading.tokenizer
        return text_parser(inputs, None if words is None else find_tokenizer(words))
    if isinstance(inputs, ImageInput | TensorInput):
        return array_parser(inputs, reading.image_reader, max_pixels)
    raise ConfigError(
        "a network that does not know its inputs cannot be served: attach it with an example, or "
        "build it by name"
    )


def nested_lists(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:  # noqa: ANN401
    """The type of nested lists of a shape, of numbers that a dtype can hold."""
    found: Any
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        found = Annotated[float, Meta(ge=-most, le=most)]
    elif dtype.kind == "b":
        found = bool
    else:
        limits = np.iinfo(dtype)
        found = Annotated[int, Meta(ge=max(limits.min, LEAST), le=min(limits.max, MOST))]
    for size in reversed(shape):
        found = Annotated[list[found], Meta(min_length=size, max_length=size)]
    return found


def decoded(content: bytes, kind: type[T], wanted: str) -> T:
    """A body of JSON as its type; if it is none, a 400 or a 422 says what is `wanted`."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise HTTPException(422, f"{str(error)[:MAX_REASON]}: {wanted}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise HTTPException(400, f"the body is not valid JSON: {reason}") from None
