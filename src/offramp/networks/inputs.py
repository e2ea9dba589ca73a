"""What a network takes as input: a batch is checked once, and turned into the first state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from offramp.arrays import AnyArray, is_array, is_floating, namespace
from offramp.errors import FileFormatError, NetworkError
from offramp.networks.state import State, leaf_at, map_leaves

if TYPE_CHECKING:
    from torch import Tensor

Tokenizer: TypeAlias = Callable[..., Mapping[str, Any]]
"""As those of `transformers`: called with a list of texts, it returns a batch."""

KEPT = "images"  # in a state that keeps its images


class Inputs:
    """Parent of the kinds of input; a kind is a frozen dataclass of JSON values."""

    kind: ClassVar[str]
    _kinds: ClassVar[dict[str, type[Inputs]]] = {}

    def __init_subclass__(cls) -> None:
        Inputs._kinds[cls.kind] = cls

    def begin(self, x: Any, counted: bool = False) -> State:  # noqa: ANN401 - checked here
        """Check a batch, of tensors or of arrays, and turn it into the first stage's state.

        Args:
            x: The batch.
            counted: Whether samples must have the size that costs were counted for, and its type.
        """
        raise NotImplementedError

    def example(self, batch: int = 1) -> Any:  # noqa: ANN401
        """A made-up batch of the right shape, for counting and probing."""
        raise NotImplementedError

    def of_size(self, x: Any) -> Inputs:  # noqa: ANN401
        """These inputs with the size of a batch, if theirs is only assumed so far."""
        return self

    def trim(self, state: State) -> State:
        """Cut what no remaining sample needs, such as padding; most inputs have none."""
        return state

    def align(self, states: Sequence[State]) -> list[State]:
        """Bring states of different batches to one shape where that changes no answer."""
        return list(states)

    def describe(self) -> dict[str, Any]:
        """Kind and settings, for a file."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @staticmethod
    def restore(description: object) -> Inputs:
        """Rebuild from `describe()`.

        Raises:
            FileFormatError: An unknown kind, or settings that it does not have.
        """
        settings = dict(description) if isinstance(description, dict) else {}
        found = Inputs._kinds.get(str(settings.pop("kind", None)))
        if found is None:
            raise FileFormatError(f"the file describes unknown inputs: {description!r}")
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
        try:
            return found(**values)
        except TypeError as error:
            raise FileFormatError(f"the file's inputs do not fit {found.kind}: {error}") from None


@dataclass(frozen=True)
class AnyInput(Inputs):
    """Whatever the first stage takes, unchecked."""

    kind: ClassVar[str] = "any"

    def begin(self, x: Any, counted: bool = False) -> State:  # noqa: ANN401
        """Pass the batch on, as a state."""
        state: State = map_leaves(lambda leaf: leaf, x)
        return state

    def example(self, batch: int = 1) -> Any:  # noqa: ANN401
        """Raise `NetworkError`: such inputs are unknown."""
        raise NetworkError("this network does not know its inputs: pass `example=`, a small batch")


@dataclass(frozen=True)
class TensorInput(Inputs):
    """One tensor, samples first.

    Args:
        shape: The shape of one sample, as in the example that the network was attached with.
        dtype: Name of the dtype, such as `float32`.

    Example:
        >>> TensorInput((3, 8, 8)).example(2).shape
        torch.Size([2, 3, 8, 8])
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    kind: ClassVar[str] = "tensor"

    def begin(self, x: Any, counted: bool = False) -> State:  # noqa: ANN401
        """Check that it is one tensor with as many dimensions as the example had.

        Raises:
            NetworkError: It is not, or its samples are not those that costs were counted for.
        """
        x = unwrapped(x)
        if not is_array(x) or x.ndim != len(self.shape) + 1:
            shape = ", ".join(("N", *map(str, self.shape)))
            raise NetworkError(f"a batch must be a tensor like [{shape}], got {_shape_of(x)}")
        if counted and tuple(x.shape[1:]) != self.shape:
            raise NetworkError(
                f"samples must have the shape {list(self.shape)}, for which costs were counted, "
                f"got {list(x.shape[1:])}: resize them, or attach with an example of their shape"
            )
        if counted:
            _check_dtype(x, self.dtype)
        return x

    def example(self, batch: int = 1) -> Tensor:
        """A batch of noise, or of zeros for whole numbers."""
        import torch  # only networks ask for examples

        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise FileFormatError(f"the file names an unknown dtype {self.dtype!r}")
        if not dtype.is_floating_point:
            return torch.zeros(batch, *self.shape, dtype=dtype)
        return torch.rand(batch, *self.shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@dataclass(frozen=True)
class ImageInput(Inputs):
    """Images `[N, channels, height, width]`, or a mapping with `pixel_values`.

    Args:
        height: Height in pixels.
        width: Width in pixels.
        channels: Colour channels.
        fixed: Whether no other size can be computed with.
        assumed: Whether nobody has stated the size yet: the first data that the network is
            trained on or recorded with do, see `EarlyExitNetwork.settle`.

    Example:
        >>> import torch
        >>> ImageInput(64, 64).begin(torch.zeros(2, 3, 32, 32))
        Traceback (most recent call last):
        offramp.errors.NetworkError: this network takes images of the shape [N, 3, 64, 64], got
        [2, 3, 32, 32]: resize the images to 64x64, or build the network for their size
    """

    height: int
    width: int
    channels: int = 3
    fixed: bool = True
    assumed: bool = False
    kind: ClassVar[str] = "image"

    def begin(self, x: Any, counted: bool = False) -> State:  # noqa: ANN401
        """Check the shape.

        Raises:
            NetworkError: Not images, or images of another size or number of channels.
        """
        images: AnyArray = unwrapped(x)
        if not is_array(images) or images.ndim != 4 or images.shape[1] != self.channels:
            raise NetworkError(
                f"images must be a tensor [N, {self.channels}, height, width] (or a mapping "
                f"with `pixel_values`), got {_shape_of(images)}"
            )
        if self.fixed and images.shape[2:] != (self.height, self.width):
            raise NetworkError(
                f"this network takes images of the shape [N, {self.channels}, {self.height}, "
                f"{self.width}], got {_shape_of(images)}: resize the images to "
                f"{self.height}x{self.width}, or build the network for their size"
            )
        if counted:
            self._check_counted(images)
        return images

    def _check_counted(self, images: AnyArray) -> None:
        size = tuple(images.shape[2:])
        if size != (self.height, self.width):
            stated, found = f"{self.height}x{self.width}", "x".join(map(str, size))
            if self.assumed:
                raise NetworkError(
                    f"nobody has stated the size of this network's images, {stated} is a guess, "
                    f"and these have {found}: record the network with its data before, or attach "
                    "the exits with `example=`"
                )
            raise NetworkError(
                f"the costs of this network were counted for images of {stated}, got {found}: "
                f"resize the images to {stated}, or attach the exits again for the other size"
            )
        _check_dtype(images, "float32")

    def of_size(self, x: Any) -> ImageInput:  # noqa: ANN401
        """See `Inputs.of_size`."""
        images = unwrapped(x)
        self.begin(images)
        if not self.assumed:
            return self
        return replace(self, height=images.shape[2], width=images.shape[3], assumed=False)

    def example(self, batch: int = 1) -> Tensor:
        """Noise in the shape of images."""
        shape = (self.channels, self.height, self.width)
        return TensorInput(shape).example(batch)


@dataclass(frozen=True)
class KeptImages(ImageInput):
    """Images that stay in the state, for the networks of a chain that come later.

    Example:
        >>> KeptImages(4, 4).begin(np.zeros((2, 3, 4, 4)))["images"].shape
        (2, 3, 4, 4)
    """

    kind: ClassVar[str] = "kept-images"

    def begin(self, x: Any, counted: bool = False) -> State:  # noqa: ANN401
        """Check the shape, and name the images."""
        return {KEPT: super().begin(x, counted)}


@dataclass(frozen=True)
class TextInput(Inputs):
    """Token ids with their mask, as a tokenizer of `transformers` gives them.

    Args:
        max_length: The most tokens that the network has positions for.
        vocabulary: Number of token ids.
        segments: Whether `token_type_ids` are read.

    Example:
        >>> import torch
        >>> state = TextInput(512, 1000).begin({"input_ids": torch.tensor([[1, 2]])})
        >>> state["mask"]
        tensor([[1, 1]])
    """

    max_length: int
    vocabulary: int
    segments: bool = False
    kind: ClassVar[str] = "text"

    def begin(self, x: Any, counted: bool = False) -> State:  # noqa: ANN401
        """Check ids and mask; a missing mask means that nothing is padding.

        Raises:
            NetworkError: No mapping with ids, a mask of another shape, or too many tokens.
        """
        ids: AnyArray = x.get("input_ids") if isinstance(x, Mapping) else None
        if not is_array(ids) or ids.ndim != 2 or is_floating(ids):
            raise NetworkError(
                "text must be a mapping with `input_ids`, whole numbers [N, length], and "
                "`attention_mask`, as tokenizer(texts, padding=True, return_tensors='pt') "
                f"gives it, got {_shape_of(x if ids is None else ids)}"
            )
        if ids.shape[1] > self.max_length:
            raise NetworkError(
                f"texts may have {self.max_length} tokens, got {ids.shape[1]}: call the "
                f"tokenizer with truncation=True, max_length={self.max_length}"
            )
        mask = x.get("attention_mask")
        mask = namespace(ids).ones_like(ids) if mask is None else mask
        state = {"input_ids": _as_int64(ids), "mask": _as_int64(mask)}
        if self.segments and x.get("token_type_ids") is not None:
            state["token_type_ids"] = _as_int64(x["token_type_ids"])
        for name, value in state.items():
            if value.shape != ids.shape:
                raise NetworkError(
                    f"`{name}` must have the shape of `input_ids`, {list(ids.shape)}, got "
                    f"{list(value.shape)}"
                )
        return state

    def example(self, batch: int = 1) -> dict[str, Tensor]:
        """Texts of up to 128 tokens without padding."""
        import torch  # only networks ask for examples

        ids = torch.arange(min(self.max_length, 128)) % self.vocabulary
        return {
            "input_ids": ids.expand(batch, -1).contiguous(),
            "attention_mask": torch.ones(batch, len(ids), dtype=torch.long),
        }

    def trim(self, state: State) -> State:
        """Cut the columns on the right that are padding for every remaining sample."""
        if not isinstance(state, dict):
            return state
        used = namespace(state["mask"]).argwhere(state["mask"].any(0))
        length = int(used.max()) + 1 if len(used) else 1
        if length == state["mask"].shape[1]:
            return state
        trimmed: State = map_leaves(lambda leaf: leaf[:, :length], state)
        return trimmed

    def align(self, states: Sequence[State]) -> list[State]:
        """Pad on the right, as columns that the mask leaves out, to the longest of the states."""
        if not isinstance(states[0], dict):
            return list(states)
        longest = max(leaf_at(state, ("mask",)).shape[1] for state in states)
        return [map_leaves(lambda leaf: _widened(leaf, longest), state) for state in states]


def inputs_like(example: Any) -> Inputs:  # noqa: ANN401
    """The kind of input that `example` is a batch of: images if it has three channels.

    Example:
        >>> import torch
        >>> inputs_like(torch.zeros(2, 3, 32, 32))
        ImageInput(height=32, width=32, channels=3, fixed=False, assumed=False)
        >>> inputs_like(torch.zeros(2, 40))
        TensorInput(shape=(40,), dtype='float32')
    """
    if not is_array(example):
        return AnyInput()
    if example.ndim == 4 and example.shape[1] == 3 and str(example.dtype) == "torch.float32":
        return ImageInput(example.shape[2], example.shape[3], fixed=False)
    return TensorInput(tuple(example.shape[1:]), str(example.dtype).removeprefix("torch."))


def tokenized(x: Any, tokenizer: Tokenizer | None, inputs: Inputs) -> Any:  # noqa: ANN401
    """Texts as a tokenizer of `transformers` makes a batch of them; anything else as it is.

    Example:
        >>> def tokenizer(texts, **options):
        ...     return {"input_ids": np.array([[len(text)] for text in texts])}
        >>> tokenized(["one", "three"], tokenizer, TextInput(8, 100))["input_ids"].tolist()
        [[3], [5]]
    """
    texts = [x] if isinstance(x, str) else x
    is_text = isinstance(texts, list | tuple) and texts and isinstance(texts[0], str)
    if not is_text:
        return x
    if tokenizer is None:
        raise NetworkError("texts need a tokenizer: Runner(..., tokenizer=tokenizer)")
    options = {"padding": True, "truncation": True, "return_tensors": "np"}
    longest = {"max_length": inputs.max_length} if isinstance(inputs, TextInput) else {}
    return dict(tokenizer(list(texts), **options, **longest))


def as_batch(x: Any) -> Any:  # noqa: ANN401
    """Numpy arrays as tensors, also inside of a mapping; images of a mapping as they are.

    Example:
        >>> as_batch({"pixel_values": np.zeros((2, 3), dtype=np.float32), "labels": [0, 1]}).shape
        torch.Size([2, 3])
    """
    x = unwrapped(x)
    if isinstance(x, np.ndarray):
        return _from_numpy(x)
    if not isinstance(x, Mapping):
        return x
    return {k: _from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in x.items()}


def unwrapped(x: Any) -> Any:  # noqa: ANN401
    """The images in a mapping with `pixel_values`; anything else as it is."""
    return x["pixel_values"] if isinstance(x, Mapping) and "pixel_values" in x else x


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    import torch  # who asks for tensors has it

    check_numbers(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def check_numbers(array: np.ndarray[Any, Any]) -> None:
    """Raise `NetworkError` unless an array holds numbers."""
    if array.dtype.kind not in "biuf":
        raise NetworkError(
            f"a batch must be numbers, got an array of {array.dtype}: stack the samples to one "
            "array of float32"
        )


def _check_dtype(x: AnyArray, wanted: str) -> None:
    """Raise unless numbers are of the type, or floats that are narrower."""
    if isinstance(x, np.ndarray) and x.dtype == wanted:
        return  # at once: the name of a type takes longer than the comparison
    found = str(x.dtype).removeprefix("torch.")
    if found == wanted or (wanted == "float32" and found in ("float16", "bfloat16")):
        return
    how = f"astype(numpy.{wanted})" if isinstance(x, np.ndarray) else f"to(torch.{wanted})"
    hint = f"convert them, for example with x.{how}"
    if found == "uint8" and wanted == "float32":
        hint = (
            "pixels have to be normalized as in training, for example with "
            "offramp.data.Normalization()(pixels)"
        )
    raise NetworkError(f"the samples must be {wanted}, got {found}: {hint}")


def _as_int64(ids: AnyArray) -> AnyArray:
    """Whole numbers as graphs and embeddings take them, whatever a tokenizer made."""
    if str(ids.dtype).endswith("int64"):
        return ids
    return ids.astype(np.int64) if isinstance(ids, np.ndarray) else ids.long()


def _widened(leaf: AnyArray, length: int) -> AnyArray:
    """`[n, T, ...]` with zeros on the right, up to a length."""
    if leaf.shape[1] == length:
        return leaf
    library, shape = namespace(leaf), (len(leaf), length - leaf.shape[1], *leaf.shape[2:])
    zeros = library.broadcast_to(library.zeros_like(leaf[:1, :1]), shape)
    return library.concatenate([leaf, zeros], 1)


def _shape_of(x: Any) -> str:  # noqa: ANN401
    return str(list(x.shape)) if is_array(x) else type(x).__name__
