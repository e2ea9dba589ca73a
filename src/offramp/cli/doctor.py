"""What is installed here, what the machine can do, which data are there, and what is missing."""

import os
import platform
import sys
from dataclasses import dataclass

import torch
from rich.markup import escape

from offramp.cli.console import out
from offramp.data.catalog import CATALOG, EMBEDDED, VARIABLE, located
from offramp.extras import (
    FEATURES,
    Extra,
    extras,
    install_command,
    installed_version,
    plugin_origins,
)
from offramp.machine import cpu_features, has_fast_bfloat16

CORE = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "rich", "typer")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: It is about.
        found: In words.
        good: Whether nothing is missing.
    """

    what: str
    found: str
    good: bool = True


def examine() -> dict[str, list[Finding]]:
    """Look at everything, by section; no optional library is imported for it.

    Example:
        >>> list(examine())
        ['versions', 'machine', 'data sets', 'features', 'methods of other packages']
    """
    return {
        "versions": _versions(),
        "machine": _machine(),
        "data sets": _data(),
        "features": [_feature(extra) for extra in extras()],
        "methods of other packages": _plugins(),
    }


def _versions() -> list[Finding]:
    system = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    found = [Finding("offramp", _offramp()), Finding("python", f"{system}, {sys.executable}")]
    versions = {package: installed_version(package) for package in CORE}
    return found + [
        Finding(package, each or f"missing: pip install {package}", each is not None)
        for package, each in versions.items()
    ]


def _offramp() -> str:
    version = installed_version("offramp")
    return version or "not installed as a package: pip install . in its folder"


def _machine() -> list[Finding]:
    features = cpu_features()
    has = ", ".join(name for name, there in features.items() if there) or "none of those known"
    set_to = os.environ.get("OMP_NUM_THREADS")
    threads = f"torch uses {torch.get_num_threads()} of {os.cpu_count()} cores"
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    fast = has_fast_bfloat16()
    return [
        Finding("devices", ", ".join(gpus) or "the processor only, no GPU"),
        Finding("threads", threads + (f" (OMP_NUM_THREADS={set_to})" if set_to else "")),
        Finding("instructions", has),
        Finding(
            "bfloat16",
            "fast here, and what --precision auto takes"
            if fast
            else "emulated here, and slow: --precision auto takes float32",
        ),
    ]


def _data() -> list[Finding]:
    root = os.environ.get(VARIABLE)
    where = Finding(
        VARIABLE,
        root or "not set; name the folder that holds data sets, to use those without the hub",
        root is not None,
    )
    made = [Finding(name, "comes with offramp") for name in EMBEDDED]
    for name, entry in CATALOG.items():
        place = located(name)
        get = f"hf download {entry.hub} --repo-type dataset --local-dir ${VARIABLE}/{name}"
        found = f"not here, so taken from the hub; to have it here: {get}"
        made.append(Finding(name, found if place is None else str(place), place is not None))
    return [where, *made]


def _feature(extra: Extra) -> Finding:
    what = f"{extra.name}: {FEATURES[extra.name]}"
    if not extra.found and not extra.missing:
        return Finding(what, f"unknown; {install_command(extra.name)}", good=False)
    if extra.missing:
        lacks = f"lacks {', '.join(extra.missing)}"
        return Finding(what, f"{lacks}: {install_command(extra.name)}", good=False)
    return Finding(what, ", ".join(f"{name} {each}" for name, each in extra.found.items()))


def _plugins() -> list[Finding]:
    found = [Finding(name, package) for name, package in plugin_origins().items()]
    return found or [Finding("none", "installed packages can register methods for --methods")]


WELCOME = """\
[bold]offramp[/bold]: early-exit neural networks, and when to stop. What next?

[bold]Just looking[/bold]
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
    """Say what to do next, by what one has."""
    out.print(WELCOME, highlight=False, soft_wrap=True)


def doctor_command() -> None:
    """Say what is installed, what this machine can do, which data are here, what is missing.

    Nothing is changed, and no optional library is imported.
    """
    for section, findings in examine().items():
        out.print(section, style="bold", highlight=False)
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mark = "[green]+[/green]" if finding.good else "[yellow]-[/yellow]"
            text = f"  {mark} {escape(finding.what):{width}}  {escape(finding.found)}"
            out.print(text, highlight=False, soft_wrap=True)
