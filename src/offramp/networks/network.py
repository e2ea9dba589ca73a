"""`EarlyExitNetwork`: stages that are separate modules, with a head after each of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn

from offramp.errors import NetworkError
from offramp.networks.inputs import AnyInput, Inputs
from offramp.networks.state import State


@dataclass(frozen=True)
class Origin:
    """Where a network came from, as far as a file can say it.

    Args:
        at: Names of the modules after which the exits before the last one are.
        builder: Name of a registered builder of the backbone; None for a user's own.
        settings: The builder's arguments, JSON values only.
        backbone: Class name of the backbone, for messages.
    """

    at: tuple[str, ...]
    builder: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    backbone: str = "nn.Module"


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
        self.origin: Origin | None = None

    @property
    def num_exits(self) -> int:
        """M, the number of exits."""
        return len(self.stages)

    def begin(self, x: Any) -> State:  # noqa: ANN401 - a tensor or a mapping of tensors
        """Check a batch and turn it into the state that the first stage takes.

        Raises:
            NetworkError: The batch is not what the network takes; the message says what is.
        """
        return self.inputs.begin(x)

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
        from offramp.networks.files import fingerprint

        return fingerprint(self)

    def save(self, folder: str | FilePath) -> FilePath:
        """Write the network as JSON and safetensors, and return the folder.

        Raises:
            NetworkError: The network was not made by `attach` or `build`, or has heads that are
                no subclass of `Head`.
        """
        from offramp.networks.files import save

        return save(self, folder)

    @classmethod
    def load(
        cls, folder: str | FilePath, backbone: nn.Module | Sequence[nn.Module] | None = None
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
        from offramp.networks.files import load

        return load(folder, backbone)

    @classmethod
    def from_pretrained(
        cls,
        name: str | FilePath,
        backbone: nn.Module | Sequence[nn.Module] | None = None,
        **download: Any,  # noqa: ANN401 - see huggingface_hub
    ) -> "EarlyExitNetwork":
        """Load a network from a folder or from the hub.

        Args:
            name: A local folder, or `owner/name` on the hub.
            backbone: As for `load`.
            **download: `revision`, `token`, `cache_dir`, ... of `huggingface_hub`.
        """
        from offramp.networks.files import from_pretrained

        return from_pretrained(name, backbone, **download)

    def push_to_hub(self, repo_id: str, **upload: Any) -> str:  # noqa: ANN401
        """Save the network and upload it to the hub; returns the address of the commit.

        Args:
            repo_id: `owner/name`.
            **upload: `private`, `token`, `commit_message`, ... of `huggingface_hub`.
        """
        from offramp.networks.files import push_to_hub

        return push_to_hub(self, repo_id, **upload)

    def extra_repr(self) -> str:
        """The exits' names and the number of classes, for `print`."""
        return f"num_classes={self.num_classes}, exit_names={list(self.exit_names)}"
