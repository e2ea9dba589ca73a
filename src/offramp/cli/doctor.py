"""The command `doctor`: what is installed, what the machine can do, which data are here."""

import os
import platform
import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires

from offramp.cli.console import out
from offramp.imports import install_command, installed_version

CORE = ("numpy", "scipy", "scikit-learn", "safetensors", "rich", "typer")


@dataclass(frozen=True)
class Item:
    """One line of the diagnosis."""

    name: str  # what was examined
    text: str  # what was found
    good: bool = True  # whether nothing is missing


def diagnosis() -> dict[str, list[Item]]:
    """Everything that was found, by section; no optional library is imported."""
    return {
        "versions": _versions(),
        "machine": _machine(),
        "data sets": _data(),
        "features": _features(),
        "methods of other packages": _plugins(),
    }


def _versions() -> list[Item]:
    system = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    offramp = installed_version("offramp")
    found = [
        Item("offramp", offramp or "not installed as a package: pip install . in its folder"),
        Item("python", f"{system}, {sys.executable}"),
    ]
    versions = {package: installed_version(package) for package in CORE}
    return found + [
        Item(package, each or f"missing: pip install {package}", each is not None)
        for package, each in versions.items()
    ]


def _machine() -> list[Item]:
    if installed_version("torch") is None:
        return [Item("devices", "known once torch is installed", good=False)]
    import torch

    from offramp.machine import (
        cpu_features,
        describe_device,
        devices,
        fast_precision,
        find_device,
    )

    features = cpu_features()
    has = ", ".join(name for name, there in features.items() if there) or "none that offramp uses"
    set_to = os.environ.get("OMP_NUM_THREADS")
    used_cores = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    threads = f"torch {torch.__version__} uses {used_cores}"
    found = [find_device(name) for name in devices()]
    used, fast = describe_device(found[0]), fast_precision(found[0])
    return [
        Item("devices", ", ".join(describe_device(each) for each in found) + _no_gpu()),
        Item("used", f"{used}, unless --device names another one"),
        Item("threads", threads + (f" (OMP_NUM_THREADS={set_to})" if set_to else "")),
        Item("instructions", has),
        Item("precision", f"--precision auto is {fast} on {found[0]}{_WHY[fast]}"),
    ]


_WHY = {
    "bfloat16": ", which has instructions for it",
    "float16": ", since bfloat16 would be emulated; gradients are scaled",
    "float32": ", since bfloat16 would be emulated, and slow",
}


def _no_gpu() -> str:
    """Why there is no GPU among the devices, where the reason is known."""
    import torch

    from offramp.machine import devices

    if len(devices()) > 1:
        return ""
    built = torch.version.cuda or torch.version.hip
    return "; torch finds no GPU" if built else "; this build of torch knows no CUDA GPUs"


def _data() -> list[Item]:
    if installed_version("torch") is None:
        return [Item("data sets", "known once torch is installed", good=False)]
    from offramp.data.catalog import VARIABLE, located
    from offramp.registry import CATALOG, EMBEDDED

    root = os.environ.get(VARIABLE)
    where = Item(
        VARIABLE,
        root or "not set; set it to a folder with data sets to use them without the hub",
        root is not None,
    )
    made = [Item(name, "comes with offramp") for name in EMBEDDED]
    for name, entry in CATALOG.items():
        place = located(name)
        get = f"hf download {entry.hub} --repo-type dataset --local-dir <folder>/{name}"
        found = f"not here: taken from the hub; to download it: {get}"
        made.append(Item(name, found if place is None else str(place), place is not None))
    return [where, *made]


FEATURES = {
    "torch": "networks, their training, and Corrector.fit",
    "train": "data sets, models of transformers, the hub, several processes",
    "report": "figures, and the page report.html",
    "onnx": "offramp export, and OnnxRunner",
    "serve": "offramp serve",
    "ray": "several machines",
    "trees": "offramp trees; models of LightGBM, with XGBoost and CatBoost as you have them",
    "lite0": "EfficientNet-Lite0 with ImageNet weights",
    "timm": "models of timm in attach",
    "torchvision": "models of torchvision in attach",
    "docs": "building the documentation site",
}
"""What each extra of `offramp` is for."""


def _features() -> list[Item]:
    """Every extra, as the installed package declares it, and what of it is installed."""
    try:
        lines = requires("offramp") or []
    except PackageNotFoundError:  # run from its folder, without having been installed
        lines = []
    packages: dict[str, list[str]] = {name: [] for name in FEATURES}
    for line in lines:
        found = re.match(r"""([A-Za-z0-9._-]+).*extra\s*==\s*["']([^"']+)["']""", line)
        if found is not None and found[2] in packages and found[1] != "offramp":
            packages[found[2]].append(found[1])
    return [_feature(name, each) for name, each in packages.items()]


def _feature(name: str, packages: list[str]) -> Item:
    versions = {package: installed_version(package) for package in packages}
    missing = [package for package, each in versions.items() if each is None]
    title, command = f"{name}: {FEATURES[name]}", install_command(f"offramp[{name}]")
    if not versions:
        return Item(title, f"unknown; {command}", good=False)
    if missing:
        return Item(title, f"lacks {', '.join(missing)}: {command}", good=False)
    return Item(title, ", ".join(f"{package} {each}" for package, each in versions.items()))


def _plugins() -> list[Item]:
    from offramp.registry import METHODS

    found = [Item(name, package) for name, package in METHODS.plugins().items()]
    return found or [Item("none", "installed packages can register methods for --methods")]


WELCOME = """\
[bold]offramp[/bold]: early-exit neural networks, and when to stop. What next?

[bold]A first impression[/bold]
  offramp demo                              trains, compares and writes a report, in about a minute
[bold]You have logits of every exit[/bold] (an .npz with logits, labels and costs)
  offramp advise logits.npz                 are early exits worth it here?
  offramp compare logits.npz                methods side by side
  offramp fit logits.npz --budget 0.5       a policy for half of the compute
[bold]You have a model, or want to train one[/bold]
  offramp train --data cluttered-digits --network convnet --epochs 8 --out runs/digits
  offramp record runs/digits                then compare and fit with runs/digits/ledgers
[bold]You have a network and a policy[/bold]
  offramp predict runs/digits policy/ photo.png          also: bench, export, serve
[bold]You want the paper's experiments[/bold]
  offramp studies                           lists them; offramp study NAME runs one

offramp --help lists all commands, offramp doctor says what is installed and what is missing, and
offramp --install-completion completes names with the Tab key."""


def welcome() -> None:
    """Print what to do next."""
    out.print(WELCOME, markup=True)


def doctor_command() -> None:
    """List what is installed, what this machine can do, which data are here, what is missing.

    Nothing is changed, and no optional library is imported.
    """
    from rich.text import Text

    for section, items in diagnosis().items():
        out.print(section, style="bold")
        width = max(len(item.name) for item in items)
        for item in items:
            mark = Text("+", "green") if item.good else Text("-", "yellow")
            text = f" {item.name:{width}}  {item.text}"
            out.print(Text.assemble("  ", mark, text))
