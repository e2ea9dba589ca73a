"""`offramp study` runs one of the paper's experiments, `offramp studies` lists them."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offramp.cli.console import out
from offramp.errors import ConfigError
from offramp.registry import or_known
from offramp_paper.experiments import NAMES, SCALES

if TYPE_CHECKING:
    from offramp_paper.experiments.network import Network


def study(arguments: Sequence[str] | None = None) -> None:
    """Run one of the paper's experiments by name: data, training, ledgers, methods, a page.

    The page shows the paper's figures beside those measured. A second run does nothing, and a run
    that was killed is resumed by the same command. Networks are trained once for all experiments.
    """
    given = vars(_parser().parse_args(arguments))
    name = given.pop("name")
    script = find_experiment(name)
    from offramp_paper.experiments.run import Options, Run

    words = sys.argv[2:] if arguments is None else arguments
    command = shlex.join(["offramp", "study", *words])
    given["only"] = tuple(each.strip() for each in given["only"].split(",") if each.strip())
    with Run(name, Options(**given), command) as run:
        script.main(run)


def find_experiment(name: str) -> Any:  # noqa: ANN401 - a module
    """The script of an experiment.

    Raises:
        ConfigError: There is no such experiment.

    Example:
        >>> find_experiment("topk")
        Traceback (most recent call last):
        offramp.errors.ConfigError: there is no study `topk`; did you mean `topk-ablation`?
    """
    if name not in NAMES:
        raise ConfigError(f"there is no study `{name}`{or_known(name, NAMES)}")
    return import_module(f"offramp_paper.experiments.{name.replace('-', '_')}")


def _parser() -> argparse.ArgumentParser:
    about, _, more = (study.__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser("offramp study", description=about, epilog=more)
    add = parser.add_argument
    add("name", metavar="NAME", help="one of `offramp studies`")
    scales = "the paper's full settings, or a size for a laptop (default)"
    add("--scale", choices=SCALES, default="small", help=scales)
    add("--out", type=Path, help="folder for tables and the page; default runs/NAME-SCALE")
    networks = "folder of trained networks, which all experiments share; default runs/networks"
    add("--networks", type=Path, default=Path("runs/networks"), help=networks)
    add(
        "--device", default="auto", help="cpu, cuda, cuda:1, mps, ...; auto: a GPU if there is one"
    )
    add("--only", default="", help="comma-separated networks of the experiment; default all")
    add("--epochs", type=int, help="of training, instead of the experiment's")
    add("--limit", type=int, help="use only the first samples of each split")
    add("--seed", type=int, default=0, help="of first weights and training")
    add("--split-seed", type=int, default=0, help="of the splits of the data")
    add("--seeds", type=int, default=3, help="number of seeds of methods whose fit is random")
    add("--resamples", type=int, default=1000, help="bootstrap resamples, for intervals")
    add(
        "--no-log-odds",
        dest="log_odds",
        action="store_false",
        help="correctors without the one term that the paper's do not have",
    )
    return parser


def studies(arguments: Sequence[str] | None = None) -> None:
    """List the paper's experiments, what they need, and what of that is missing here."""
    argparse.ArgumentParser("offramp studies", description=studies.__doc__).parse_args(arguments)
    for name in NAMES:
        script = find_experiment(name)
        out.print(name, style="bold")
        about = " ".join(script.__doc__.split("\n\n")[0].split())
        out.print(f"  {about}", soft_wrap=True)
        for scale in (scale for scale in SCALES if scale in script.NETWORKS):
            networks: list[Network] = script.NETWORKS[scale]
            needs = dict.fromkeys(each.needs for each in networks)
            out.print(f"    {scale}: {'; '.join(needs)} ({_state(networks)})", soft_wrap=True)
    out.print(
        "offramp study NAME --scale small|paper runs one of them. Data are looked for below the "
        "folder in OFFRAMP_DATA. The paper scale needs GPUs and was not run: its networks are "
        "tested up to the first training step.",
        soft_wrap=True,
    )


def _state(networks: "Sequence[Network]") -> str:
    """What is missing of the data and ledgers of an experiment."""
    from offramp_paper.experiments.network import SHIPPED, is_here

    needed = [each.ledgers or each.data for each in networks if each.ledgers != SHIPPED]
    missing = [each for each in needed if not is_here(each)]
    return f"missing: {', '.join(dict.fromkeys(missing))}" if missing else "available"
