"""What the adapters share: a model without its classifier, what it takes, reading its states."""

from typing import Any

from torch import Tensor, nn

from offramp.networks.heads import Pool
from offramp.networks.inputs import ImageInput
from offramp.networks.state import State


class Read(nn.Module):
    """Reads features from a state, for a classifier of the model that comes next."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, state: State) -> Tensor:
        """What the pool returns."""
        return self.pool(state)


def trunk_of(model: Any, name: str) -> tuple[Any, str]:  # noqa: ANN401 - a PreTrainedModel
    """The model without its classifier, and what its modules' names begin with."""
    trunk = getattr(model, name, None)
    return (model, "") if trunk is None else (trunk, f"{name}.")


def own_classes(model: Any, trunk: Any) -> int | None:  # noqa: ANN401
    """Number of classes of the model's classifier; None if it has none."""
    return int(model.config.num_labels) or None if model is not trunk else None


def image_input(config: Any, fixed: bool) -> ImageInput:  # noqa: ANN401
    """What an image model takes; `fixed` if it takes no other size.

    Otherwise the size is a guess: configurations name none, or one that their model was never
    trained with.
    """
    size = getattr(config, "image_size", None) or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return ImageInput(height, width, config.num_channels, fixed, assumed=not fixed)
