"""What a worker loads, wherever it runs: folders, and names that go with them."""

import socket
from dataclasses import dataclass
from pathlib import Path

from offramp.errors import ConfigError, FileFormatError
from offramp.networks.network import EarlyExitNetwork
from offramp.policy import Policy
from offramp.runtime.runner import Runner


def network_folder(run: str | Path) -> Path:
    """Where the network is: in the folder of a run, or in a folder of its own."""
    run = Path(run)
    return run / "network" if (run / "network").is_dir() else run


def read_names(path: str | Path | None) -> tuple[str, ...] | None:
    """The names of classes, from a text file with one in each line.

    Raises:
        ConfigError: It cannot be read.
    """
    if path is None:
        return None
    try:
        return tuple(Path(path).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the class names cannot be read: {error}") from None


@dataclass(frozen=True)
class Model:
    """What a worker loads: folders, so that nothing but names goes to another process.

    Attributes:
        network: Folder of a network that a registered builder can make.
        policy: Folder of its policy.
        budget: Of the operating point; None for the policy's own.
        class_names: `[K]`, or None.
    """

    network: Path
    policy: Path
    budget: float | None = None
    class_names: tuple[str, ...] | None = None

    def runner(self, precision: str = "float32") -> Runner:
        """Load both, and check that they fit.

        Raises:
            FileFormatError: A folder is not on this machine, foreign or damaged.
            ConfigError, NetworkError, OriginError, BudgetError: The parts do not fit.
        """
        for folder in (self.network, self.policy):
            if not Path(folder).is_dir():
                raise FileFormatError(
                    f"there is no folder {folder} on {socket.gethostname()}; every machine that "
                    "runs this network needs it at the same place"
                )
        network, policy = EarlyExitNetwork.load(self.network), Policy.load(self.policy)
        policy = policy if self.budget is None else policy.at(budget=self.budget)
        names = self.class_names
        if names is not None and len(names) != network.num_classes:
            raise ConfigError(
                f"there must be a name for each of the {network.num_classes} classes, got "
                f"{len(names)}"
            )
        return Runner(network, policy, precision=precision)  # type: ignore[arg-type]
