"""`EarlyExitNetwork`: stages that are separate modules, with a head after each of them.

On disk it is JSON that names registered builders and heads, and safetensors.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn

from offramp.costs import kept_stages
from offramp.errors import FileFormatError, NetworkError, OfframpError
from offramp.extras import require
from offramp.networks.backbones import BackboneModules, find_layout, rebuild_backbone
from offramp.networks.heads import BackboneHead, Head
from offramp.networks.inputs import (
    AnyInput,
    ImageInput,
    Inputs,
    KeptImages,
    TensorInput,
    as_batch,
)
from offramp.networks.layout import Layout
from offramp.networks.passes import FirstStage, LaterStage, beside_images
from offramp.networks.state import State
from offramp.networks.weights import (
    distinct_tensors,
    fingerprint,
    from_int8,
    hash_of,
    load_tensors,
    to_int8,
)
from offramp.schema import restore
from offramp.storage import read_folder, write_folder

FORMAT_VERSION = 1

# The hub counts downloads of config.json; our own format does not need it.
_HUB_FILES = ("network.json", "*.safetensors", "config.json")

_CARD = """---
library_name: offramp
tags:
- early-exit
---
# An early-exit network

{exits} exits, {classes} classes. Load it with:

```python
from offramp.networks import EarlyExitNetwork

network = EarlyExitNetwork.from_pretrained("owner/name")
```
"""


@dataclass(frozen=True)
class Origin:
    """What a file says about where a network came from."""

    at: tuple[str, ...]  # names of the modules after which the exits before the last one are
    # name of a registered builder of the backbone; None for a user's own
    builder: str | None = None
    # the builder's arguments, JSON values only
    settings: dict[str, Any] = field(default_factory=dict)
    backbone: str = "nn.Module"  # class name of the backbone, for messages


class EarlyExitNetwork(nn.Module):
    """A network with an exit after each of its stages.

    Usually made by `attach` or `build`. A stage takes a state and returns a state; a head takes
    `(state, logits_so_far)` and returns logits.

    Args:
        stages: M modules, run in order.
        heads: M modules, one after each stage.
        num_classes: K.
        inputs: What a batch looks like; unchecked if not given.
        exit_names: Names of the exits, such as the module that each comes after.
        starts: Stages, besides the first, that begin with the inputs again and need nothing of
            what was run before: those of the later networks of a `chain`.

    Example:
        >>> from offramp.networks.heads import LinearHead, Pool
        >>> network = EarlyExitNetwork(
        ...     stages=[nn.Linear(4, 8), nn.Linear(8, 8)],
        ...     heads=[LinearHead(Pool("flat"), 8, 3) for _ in range(2)],
        ...     num_classes=3,
        ... )
        >>> network(torch.rand(5, 4)).shape
        torch.Size([5, 2, 3])
        >>> state = network.advance(0, network.begin(torch.rand(5, 4)))
        >>> network.head(0, state).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        heads: Sequence[nn.Module],
        num_classes: int,
        inputs: Inputs | None = None,
        exit_names: Sequence[str] | None = None,
        starts: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if not stages or len(stages) != len(heads):
            raise NetworkError(
                "a network needs at least one stage and one head for each of its stages, got "
                f"{len(stages)} stages and {len(heads)} heads"
            )
        names = tuple(exit_names or (f"stages.{index}" for index in range(len(stages))))
        if len(names) != len(stages):
            raise NetworkError(
                f"`exit_names` must have a name for each of the {len(stages)} exits, got "
                f"{len(names)}"
            )
        self.stages = nn.ModuleList(stages)
        self.heads = nn.ModuleList(heads)
        self.num_classes = num_classes
        self.inputs = inputs or AnyInput()
        self.exit_names = names
        self.starts = tuple(starts)
        self.origin: Origin | None = None
        self.members: tuple[EarlyExitNetwork, ...] = ()  # of a chain
        self.is_new = False  # whether its weights are random, as `build` makes them

    @property
    def num_exits(self) -> int:
        """M, the number of exits."""
        return len(self.stages)

    @property
    def last_start(self) -> int:
        """The first stage that the last exit needs; 0, except in a chain."""
        return self.starts[-1] if self.starts else 0

    def begin(self, x: Any) -> State:  # noqa: ANN401 - a tensor or a mapping of tensors
        """Check a batch and turn it into the state that the first stage takes.

        Raises:
            NetworkError: The batch is not what the network takes; the message says what is.
        """
        return self.inputs.begin(as_batch(x))

    def settle(self, x: Any) -> None:  # noqa: ANN401 - a batch as the network takes it
        """Take the size of a batch as the network's own, if nobody has stated one so far.

        Training and recording do this with their first batch: costs are counted for that size,
        and any other one is refused from then on.
        """
        self.inputs = self.inputs.of_size(x)

    def advance(self, exit_index: int, state: State) -> State:
        """Run one stage: from the state before it to the state at exit `exit_index`."""
        result: State = self.stages[exit_index](state)
        return result

    def head(self, exit_index: int, state: State, logits_so_far: Tensor | None = None) -> Tensor:
        """Logits of one exit.

        Args:
            exit_index: m, counted from 0.
            state: What `advance(m, ...)` returned, `n` samples.
            logits_so_far: `[n, m, K]`; only cascade heads need it.

        Returns:
            Logits `[n, K]`.
        """
        logits: Tensor = self.heads[exit_index](state, logits_so_far)
        return logits

    def forward(self, x: Any) -> Tensor:  # noqa: ANN401 - a tensor or a mapping of tensors
        """Logits of all exits, `[N, M, K]`.

        Args:
            x: A batch as the backbone takes it: a tensor, or a mapping for text.
        """
        state = self.begin(x)
        logits: list[Tensor] = []
        for exit_index, head in enumerate(self.heads):
            state = self.advance(exit_index, state)
            # Stacked only for those that read it: otherwise every exit copies all before it.
            reads = logits and getattr(head, "reads_logits", True)
            so_far = torch.stack(logits, 1) if reads else None
            logits.append(self.head(exit_index, state, so_far))
        return torch.stack(logits, 1)

    def keep_exits(self, exits: Sequence[int]) -> "EarlyExitNetwork":
        """This network with some of its exits; the modules are shared, not copied.

        The stages between two kept exits become one, and nothing after the last kept exit is
        left. It cannot be saved: save the whole network, and let a policy name its exits.

        Args:
            exits: Ascending numbers of exits.

        Raises:
            NetworkError: There is no such exit, or a kept head reads the logits of a dropped one.

        Example:
            >>> from offramp.networks import build
            >>> network = build("convnet", num_classes=4, image_size=8).eval()
            >>> x = torch.rand(2, 3, 8, 8)
            >>> bool((network.keep_exits([1, 3])(x) == network(x)[:, [1, 3]]).all())
            True
        """
        kept = [int(exit_index) for exit_index in exits]
        if not kept or kept != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= self.num_exits:
            raise NetworkError(
                f"`exits` must be ascending numbers in 0..{self.num_exits - 1}, got {kept}"
            )
        for position, exit_index in enumerate(kept):
            reads = exit_index and getattr(self.heads[exit_index], "reads_logits", True)
            if reads and kept[:position] != list(range(exit_index)):
                raise NetworkError(
                    f"the head of exit {exit_index} reads the logits of all exits before it, so "
                    "none of them can be dropped (a head that does not read them says "
                    "`reads_logits = False`)"
                )
        bounds, starts = kept_stages(self.starts, kept)
        return EarlyExitNetwork(
            [_joined(list(self.stages)[start:end]) for start, end in bounds],
            [self.heads[exit_index] for exit_index in kept],
            self.num_classes,
            self.inputs,
            [self.exit_names[exit_index] for exit_index in kept],
            starts,
        ).train(self.training)

    def trim(self, state: State) -> State:
        """Cut what no remaining sample needs, such as columns that are padding for all."""
        return self.inputs.trim(state)

    def align(self, states: Sequence[State]) -> list[State]:
        """Bring states of different batches to one shape where that changes no answer.

        Texts are padded to the longest; images of different sizes stay as they are.
        """
        return self.inputs.align(states)

    def example(self, batch: int = 1) -> Any:  # noqa: ANN401
        """A made-up batch of the right shape, for counting and probing."""
        return self.inputs.example(batch)

    def fingerprint(self) -> str:
        """A hash of all weights and buffers, and of their names and types."""
        return fingerprint(self)

    def save(self, folder: str | FilePath, *, int8: bool = False) -> FilePath:
        """Write the network as JSON and safetensors, and return the folder.

        Args:
            folder: Where to write.
            int8: Round weights to 8 bits, with a scale per output channel: a quarter of the size
                of float32. They are loaded in float32, but they are other weights: record the
                loaded network, and fit policies on that.

        Raises:
            NetworkError: The network was not made by `attach` or `build`, or a head is not a
                subclass of `Head`.
        """
        tensors = distinct_tensors(self)
        stored = to_int8(tensors) if int8 else tensors
        meta = _describe(self)
        meta["fingerprint"] = hash_of(from_int8(stored) if int8 else tensors)
        return write_folder(folder, "network", FORMAT_VERSION, meta, stored)

    @classmethod
    def load(
        cls, folder: str | FilePath, backbone: BackboneModules | None = None
    ) -> "EarlyExitNetwork":
        """Read a network that `save` wrote, in eval mode.

        Its weights replace those of `backbone`, if one is given.

        Args:
            folder: Where it was saved.
            backbone: Needed where the network was attached to a backbone of your own: a module
                of the same shape, since files never name code to import.

        Raises:
            FileFormatError: The folder is foreign or damaged, names an unknown builder or head,
                or does not fit the backbone.
        """
        return cls._load(folder, backbone)

    @classmethod
    def _load(
        cls,
        folder: str | FilePath,
        backbone: BackboneModules | None,
        links_into: FilePath | None = None,
    ) -> "EarlyExitNetwork":
        meta, tensors = read_folder(folder, "network", FORMAT_VERSION, links_into)
        try:
            network = _restore(meta, backbone, folder)
        except NetworkError as error:
            raise FileFormatError(f"{folder} does not fit the backbone: {error}") from error
        except OfframpError:
            raise
        # Builders and heads are anybody's, and what they do with odd settings is not known.
        except Exception as error:
            raise FileFormatError(f"{folder} does not describe a network: {error!r}") from error
        load_tensors(network, from_int8(tensors), folder)
        if network.fingerprint() != meta["fingerprint"]:
            raise FileFormatError(f"the weights in {folder} are not those that were saved there")
        return network.eval()

    @classmethod
    def from_pretrained(
        cls,
        name: str | FilePath,
        backbone: BackboneModules | None = None,
        **download: Any,  # noqa: ANN401 - see huggingface_hub
    ) -> "EarlyExitNetwork":
        """Load a network from a folder or from the hub.

        Args:
            name: A local folder, or `owner/name` on the hub.
            backbone: As for `load`.
            **download: `revision`, `token`, `cache_dir`, ... of `huggingface_hub`.
        """
        if FilePath(name).is_dir():
            return cls.load(name, backbone)
        hub = require("huggingface_hub", extra="train")
        patterns = list(_HUB_FILES)
        folder = FilePath(hub.snapshot_download(str(name), allow_patterns=patterns, **download))
        # In its cache, OWNER--NAME/snapshots/COMMIT/FILE is a link to OWNER--NAME/blobs/HASH.
        return cls._load(folder, backbone, links_into=folder.parent.parent)

    def push_to_hub(self, repo_id: str, **upload: Any) -> str:  # noqa: ANN401
        """Save the network and upload it to the hub; returns the address of the commit.

        Args:
            repo_id: `owner/name`.
            **upload: `private`, `token`, `commit_message`, ... of `huggingface_hub`.
        """
        network = self
        hub = require("huggingface_hub", extra="train")

        class Upload(hub.ModelHubMixin):  # type: ignore[misc, name-defined]
            def _save_pretrained(self, save_directory: FilePath) -> None:
                _save_with_card(network, save_directory)

        return str(Upload().push_to_hub(repo_id, **upload))

    def __repr__(self) -> str:
        weights = sum(each.numel() for each in self.parameters())
        heads = [type(head).__name__ for head in self.heads]
        exits = ", ".join(
            f"{name} ({head})" for name, head in zip(self.exit_names, heads, strict=True)
        )
        return (
            f"EarlyExitNetwork({self.num_exits} exits, {self.num_classes} classes, {weights:,} "
            f"weights\n  inputs: {self.inputs}\n  exits after: {exits}\n"
            "  its modules: network.stages, network.heads)"
        )


def _joined(stages: Sequence[nn.Module]) -> nn.Module:
    """Stages that run one after the other, as one."""
    return stages[0] if len(stages) == 1 else nn.Sequential(*stages)


def chain(networks: Sequence[EarlyExitNetwork]) -> EarlyExitNetwork:
    """One network of several: a sample that leaves at no exit of the first goes on to the next.

    Each takes the same images at its own size, so that a network for small images can answer
    what is easy, and one for large images the rest. It is recorded, profiled, exported and served
    as any other network, and budgets are shares of what the *last* network alone costs. For
    models of any other kind, see `offramp.Cascade`.

    Args:
        networks: From the cheapest to the best, for images and the same classes. Their modules
            are shared, not copied, and are in train mode afterwards only if all of them were.
            Those of a chain count one by one.

    Raises:
        NetworkError: They do not fit together; the message says what differs.

    Example:
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
        is_last = member is members[-1]
        starts.append(len(stages))
        taken = cast(ImageInput, member.inputs)
        size = taken.height, taken.width
        stages.append(FirstStage(member.stages[0], size, keeps_images=not is_last))
        later = list(member.stages)[1:]
        stages += later if is_last else [LaterStage(stage) for stage in later]
        own = [cast(Head, head) for head in member.heads]
        heads += own if is_last else [beside_images(head) for head in own]
    names = [f"{n}.{name}" for n, member in enumerate(members) for name in member.exit_names]
    made = EarlyExitNetwork(stages, heads, members[0].num_classes, inputs, names, starts[1:])
    made.members = members
    mode = all(member.training for member in members)
    for member in members:
        member.train(mode)
    return made.train(mode)


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
        if not isinstance(head, Head) or head.reads_logits or _reads_by_itself(head):
            raise NetworkError(
                f"a {type(head).__name__} cannot be a head of a chain: it must be an "
                "offramp.networks.Head that reads the state by its `pool`, and no logits of "
                "earlier exits"
            )
    largest = max(images, key=lambda each: each.height * each.width)
    return KeptImages(largest.height, largest.width, largest.channels)


def _reads_by_itself(head: Head) -> bool:
    return type(head).features is not Head.features


def _describe(network: EarlyExitNetwork) -> dict[str, Any]:
    """How to make a network again, as JSON values."""
    if network.members:
        return {"members": [_describe_member(network, member) for member in network.members]}
    origin = network.origin
    if origin is None:
        raise NetworkError(
            "only networks from `attach`, `build` and `chain` know how to be made again; attach "
            "to your list of stages, and pass the list to `load` as `backbone`"
        )
    return {
        "backbone": {
            "builder": origin.builder,
            "settings": origin.settings,
            "class": origin.backbone,
        },
        "at": list(origin.at),
        "num_classes": network.num_classes,
        "inputs": network.inputs.describe(),
        "heads": [_describe_head(head) for head in network.heads],
    }


def _describe_member(network: EarlyExitNetwork, member: EarlyExitNetwork) -> dict[str, Any]:
    """A network of a chain, which must be made again without any help."""
    if member.origin is None or member.origin.builder is None:
        raise NetworkError(
            "a chain can be saved if a file can name the backbones of all its networks: make "
            "yours known with offramp.networks.register_builder, and make the network with `build`"
        )
    if len(distinct_tensors(network)) < sum(len(distinct_tensors(m)) for m in network.members):
        raise NetworkError("a chain whose networks share weights cannot be saved")
    return _describe(member)


def _describe_head(head: nn.Module) -> dict[str, Any] | None:
    if isinstance(head, BackboneHead):
        return None
    if not isinstance(head, Head):
        raise NetworkError(
            f"a {type(head).__name__} cannot be saved as a head; make it a subclass of "
            "offramp.networks.Head"
        )
    return head.describe()


class _Backbone(TypedDict):
    """How a file names a backbone."""

    builder: str | None
    settings: dict[str, Any]


class _Description(TypedDict):
    """What `save` writes."""

    backbone: _Backbone
    at: list[str]
    num_classes: int
    inputs: dict[str, Any]
    heads: list[dict[str, Any] | None]


class _ChainDescription(TypedDict):
    """The same of a chain."""

    members: list[dict[str, Any]]


def _restore(
    meta: dict[str, Any], backbone: BackboneModules | None, folder: str | FilePath
) -> EarlyExitNetwork:
    """The network that a file describes, with the backbone's or random weights."""
    kind = _ChainDescription if "members" in meta else _Description
    restore(kind, meta, f"{folder} does not describe a network")
    if "members" in meta:
        if backbone is not None:
            raise NetworkError("it is a chain, which needs no backbone: its file names them all")
        return chain([_restore(member, None, folder) for member in meta["members"]])
    saved = meta["backbone"]
    origin = Origin(tuple(meta["at"]), saved["builder"], saved["settings"], saved["class"])
    inputs = Inputs.restore(meta["inputs"])
    if backbone is None:
        backbone = rebuild_backbone(origin.builder, origin.settings, origin.backbone)
    # Only a traced module is probed with an example, which always is one tensor.
    example = inputs.example(2) if isinstance(inputs, TensorInput | ImageInput) else None
    layout = find_layout(backbone, origin.at, example)
    exits = layout.exits_after(origin.at)
    if exits != list(origin.at):
        raise FileFormatError(
            f"the file's exits {list(origin.at)} are not those of the backbone, {exits}"
        )
    heads = [
        _backbone_head(layout) if each is None else Head.restore(each) for each in meta["heads"]
    ]
    names = (*exits, "last")
    network = EarlyExitNetwork(layout.stages(exits), heads, meta["num_classes"], inputs, names)
    # New heads are made on the CPU, wherever the backbone is.
    network.heads.to(next((p.device for p in network.stages.parameters()), None))
    network.origin = origin
    return network


def _backbone_head(layout: Layout) -> BackboneHead:
    if layout.classifier is None:
        raise FileFormatError("the file wants the backbone's own classifier, and it has none")
    return BackboneHead(layout.classifier)


def _save_with_card(network: EarlyExitNetwork, folder: FilePath) -> None:
    network.save(folder)
    config = {"library_name": "offramp", "exit_names": network.exit_names}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    card = _CARD.format(exits=network.num_exits, classes=network.num_classes)
    (folder / "README.md").write_text(card)


def check_has_exits(network: object, who: str) -> None:
    """Raise `NetworkError` unless `who` was given a network with exits."""
    if not isinstance(network, EarlyExitNetwork):
        raise NetworkError(
            f"{who} needs an EarlyExitNetwork, got {type(network).__name__}: put exits on it with "
            "offramp.attach"
        )
