"""`EarlyExitNetwork`: stages that are separate modules, with a head after each of them."""

import hashlib
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from offramp.costs import kept_stages
from offramp.errors import NetworkError
from offramp.networks.heads import stacked_for
from offramp.networks.inputs import AnyInput, Inputs, as_batch
from offramp.networks.state import State, tensors

if TYPE_CHECKING:
    from offramp.networks.backbones import BackboneModules, Origin


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
            what was run before: the first stages of the later networks of a `chain`.

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
        self.origin: Origin | None = None  # if a file can say how to make it again
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

    def forward(self, x: Any = None, **named: Any) -> Tensor:  # noqa: ANN401
        """Logits of all exits, `[N, M, K]`.

        Args:
            x: A batch as the backbone takes it: a tensor, or a mapping for text.
            **named: The entries of a mapping instead, as in `network(**batch)`.
        """
        if x is not None and named:
            raise NetworkError(
                f"give a batch, or its parts by name, and not both: got {', '.join(named)} as well"
            )
        state = begun = self.begin(named if x is None else x)
        logits: list[Tensor] = []
        try:
            for exit_index, head in enumerate(self.heads):
                state = self.advance(exit_index, state)
                logits.append(self.head(exit_index, state, stacked_for(head, logits)))
        except RuntimeError as error:
            self._check_precision(begun, error)
            raise
        return torch.stack(logits, 1)

    def _check_precision(self, state: State, error: RuntimeError) -> None:
        """Raise `NetworkError` where a batch has another precision than the weights."""
        own = next((p.dtype for p in self.parameters() if p.is_floating_point()), None)
        for leaf in tensors(state):
            if own is not None and leaf.is_floating_point() and leaf.dtype != own:
                names = [str(each).removeprefix("torch.") for each in (own, leaf.dtype)]
                raise NetworkError(
                    f"the network is in {names[0]} and the batch in {names[1]}: call "
                    "network.float(), and say precision='bfloat16' where it is trained and run"
                ) from error

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
        from offramp.networks.files import save_network  # which makes networks again

        return save_network(self, folder, int8)

    def save_pretrained(self, folder: str | FilePath) -> FilePath:
        """As `save`, by the name that `transformers` has for it."""
        return self.save(folder)

    @classmethod
    def load(
        cls, folder: str | FilePath, backbone: "BackboneModules | None" = None
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
        from offramp.networks.files import load_network

        return load_network(folder, backbone)

    @classmethod
    def from_pretrained(
        cls,
        name: str | FilePath,
        backbone: "BackboneModules | None" = None,
        **download: Any,  # noqa: ANN401 - see huggingface_hub
    ) -> "EarlyExitNetwork":
        """Load a network from a folder or from the hub.

        Args:
            name: A local folder, or `owner/name` on the hub.
            backbone: As for `load`.
            **download: `revision`, `token`, `cache_dir`, ... of `huggingface_hub`.
        """
        from offramp.networks.files import download_network

        if FilePath(name).is_dir():
            return cls.load(name, backbone)
        return download_network(str(name), backbone, **download)

    def push_to_hub(self, repo_id: str, **upload: Any) -> str:  # noqa: ANN401
        """Save the network and upload it to the hub; returns the address of the commit.

        Args:
            repo_id: `owner/name`.
            **upload: `private`, `token`, `commit_message`, ... of `huggingface_hub`.
        """
        from offramp.networks.files import upload_network

        return upload_network(self, repo_id, **upload)

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


def check_has_exits(network: object, who: str) -> None:
    """Raise `NetworkError` unless `who` was given a network with exits."""
    if not isinstance(network, EarlyExitNetwork):
        raise NetworkError(
            f"{who} needs an EarlyExitNetwork, got {type(network).__name__}: put exits on it with "
            "offramp.attach"
        )


def fingerprint(module: nn.Module) -> str:
    """A hash of all weights and buffers, and of their names, types and shapes."""
    return hash_of(distinct_tensors(module))


def hash_of(tensors: dict[str, Tensor]) -> str:
    """A hash of named tensors, their types and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        plain = tensor.detach().cpu().contiguous().flatten()
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def distinct_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The state dict, with only the first name of a tensor that is used in several places."""
    seen: set[int] = set()
    result = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            result[name] = tensor
    return result
