"""`chain`: several networks that see the same images one after the other, as one network.

On the way through all networks but the last, the state holds the images next to the network's own
state, since the next network begins with them.
"""

from collections.abc import Sequence
from copy import copy
from typing import cast

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate

from offramp.errors import NetworkError
from offramp.networks.heads import Head, Pool
from offramp.networks.inputs import KEPT, ImageInput, KeptImages
from offramp.networks.network import EarlyExitNetwork, check_has_exits
from offramp.networks.state import State

INNER = "inner"  # next to the images: the state of the network that is running


def chain(networks: Sequence[EarlyExitNetwork]) -> EarlyExitNetwork:
    """One network of several: a sample that leaves at no exit of the first goes on to the next.

    Each takes the same images at its own size, so that a network for small images can answer
    what is easy, and one for large images the rest. It is recorded, profiled, exported and served
    as any other network, and budgets are shares of what the *last* network alone costs. For
    models of any other kind, see `offramp.Cascade`.

    Args:
        networks: From the cheapest to the best, for images and the same classes. Their modules
            are shared, not copied, and are in train mode afterwards only if all of them were.
            The networks of a chain among them count one by one.

    Raises:
        NetworkError: They do not fit together; the message says what differs.

    Example:
        >>> import torch
        >>> from offramp.networks import build
        >>> small, large = (build("convnet", num_classes=4, image_size=s, at=2) for s in (8, 16))
        >>> both = chain([small, large]).eval()
        >>> both.exit_names
        ('0.blocks.1', '0.last', '1.blocks.1', '1.last')
        >>> x = torch.rand(2, 3, 16, 16)
        >>> bool((both(x)[:, 2:] == large.eval()(x)).all())
        True
    """
    for network in networks:
        check_has_exits(network, "a chain")
    members = tuple(part for network in networks for part in network.members or (network,))
    inputs = _common_inputs(members)
    stages: list[nn.Module] = []
    heads: list[nn.Module] = []
    starts: list[int] = []
    for member in members:
        keeps_images = member is not members[-1]
        starts.append(len(stages))
        stages += _stages_from_images(member, keeps_images)
        heads += [_next_to_images(head) if keeps_images else head for head in member.heads]
    names = [f"{n}.{name}" for n, member in enumerate(members) for name in member.exit_names]
    made = EarlyExitNetwork(stages, heads, members[0].num_classes, inputs, names, starts[1:])
    made.members = members
    mode = all(member.training for member in members)
    for member in members:
        member.train(mode)
    return made.train(mode)


def _stages_from_images(member: EarlyExitNetwork, keeps_images: bool) -> list[nn.Module]:
    """The stages of one network of a chain, which keep the images if another network follows."""
    first, *later = member.stages
    assert isinstance(member.inputs, ImageInput), "checked before"
    size = member.inputs.height, member.inputs.width
    kept = [LaterStage(stage) for stage in later] if keeps_images else later
    return [FirstStage(first, size, keeps_images), *kept]


def _common_inputs(members: Sequence[EarlyExitNetwork]) -> KeptImages:
    """The largest images of several networks, which must fit together."""
    if len(members) < 2 or len(set(map(id, members))) < len(members):
        raise NetworkError("a chain needs two networks or more, and none of them twice")
    classes = [member.num_classes for member in members]
    if len(set(classes)) > 1:
        raise NetworkError(f"the networks of a chain must have the same classes, got {classes}")
    images = [member.inputs for member in members if isinstance(member.inputs, ImageInput)]
    kinds = [type(member.inputs).__name__ for member in members]
    if len(images) < len(members) or "KeptImages" in kinds:
        raise NetworkError(
            "the networks of a chain must take images, and be whole networks of `attach` or "
            f"`build`, got networks for {', '.join(kinds)}"
        )
    if any(each.assumed for each in images):
        raise NetworkError(
            "the networks of a chain must say of which size their images are: train or record "
            "them before"
        )
    if len({(each.channels, each.height / each.width) for each in images}) > 1:
        raise NetworkError(
            "the networks of a chain must take images with the same channels and proportions"
        )
    for head in (head for member in members for head in member.heads):
        reads_by_pool = isinstance(head, Head) and type(head).features is Head.features
        if not reads_by_pool or head.reads_logits:
            raise NetworkError(
                f"a {type(head).__name__} cannot be a head of a chain: it must be an "
                "offramp.networks.Head that reads the state by its `pool`, and no logits of "
                "earlier exits"
            )
    largest = max(images, key=lambda each: each.height * each.width)
    return KeptImages(largest.height, largest.width, largest.channels)


class FirstStage(nn.Module):
    """A network's first stage, which takes the images at the network's own size.

    Args:
        stage: From images to a state.
        size: Height and width of the images that it takes.
        keeps_images: Whether another network comes later.
    """

    def __init__(self, stage: nn.Module, size: tuple[int, int], keeps_images: bool) -> None:
        super().__init__()
        self.stage, self.size, self.keeps_images = stage, size, keeps_images

    def forward(self, state: dict[str, State]) -> State:
        """From `{"images": ...}`, and whatever another network has left in the same dict."""
        images = cast(Tensor, state[KEPT])
        inner: State = self.stage(at_size(images, self.size))
        return {KEPT: images, INNER: inner} if self.keeps_images else inner


class LaterStage(nn.Module):
    """A stage that leaves the images as they are."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, state: dict[str, State]) -> State:
        """From images and a state to the same images and the next state."""
        return {KEPT: state[KEPT], INNER: self.stage(state[INNER])}


def _next_to_images(head: nn.Module) -> Head:
    """The same head, with the same weights, for a state that is kept next to images."""
    assert isinstance(head, Head), "checked before"
    inner = copy(head)
    pool = head.pool
    mask = None if pool.mask is None else (INNER, *pool.mask)
    inner.pool = Pool(pool.kind, (INNER, *pool.leaf), mask)
    return inner


def at_size(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images `[n, C, H, W]` at another size; averaged where that fits, which is fastest.

    Example:
        >>> import torch
        >>> at_size(torch.rand(2, 3, 8, 8), (4, 4)).shape
        torch.Size([2, 3, 4, 4])
    """
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    cells = height // size[0], width // size[1]
    if (cells[0] * size[0], cells[1] * size[1]) == (height, width):
        return avg_pool2d(images, cells)
    return interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)
