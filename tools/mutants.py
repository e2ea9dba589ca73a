"""Change one operator or number at a time in a room, and see which changes its tests notice.

mutmut does the work. This script gives it one room of `[tool.mutants]` in pyproject.toml, in a
folder of its own, and a random sample of all changes, since all of them would take hours:

    python tools/mutants.py thresholds --sample 60 --minutes 15

Changes that survive are printed as diffs. Texts of errors are left alone.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SHARED = {".git", ".venv", ".venv-timm", "build", "pyproject.toml"}
NOTICED = {"killed", "timeout", "suspicious", "segfault"}
KNOWN = (*NOTICED, "survived", "no tests")


def main() -> None:
    """Run mutmut on one room, or on every one in turn."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutants"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(settings))
    parser.add_argument("--sample", type=int, default=60, help="Changes by room.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed of the sample.")
    parser.add_argument("--minutes", type=float, default=15.0, help="Time limit by room.")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.rooms) - set(settings))
    if unknown:
        parser.error(f"no room {', '.join(unknown)}; there are {', '.join(settings)}")
    for room in chosen.rooms or settings:
        folder = prepared(room, settings[room])
        names = mutants(folder)
        sample = random.Random(chosen.seed).sample(names, min(chosen.sample, len(names)))
        try:
            mutmut(folder, "run", *sample, minutes=chosen.minutes)
        except subprocess.TimeoutExpired:
            write(f"{room}: stopped after {chosen.minutes:g} minutes")
        report(room, folder, sample, len(names))


def prepared(room: str, settings: dict[str, list[str]]) -> Path:
    """A folder that looks like this one, with settings of mutmut for one room."""
    folder = ROOT / "build" / "mutants" / room
    folder.mkdir(parents=True, exist_ok=True)
    for path in ROOT.iterdir():
        link = folder / path.name
        if path.name not in NOT_SHARED and not link.exists():
            link.symlink_to(path)
    lines = [
        "[tool.mutmut]",
        f"only_mutate = {json.dumps(settings['files'])}",
        f"pytest_add_cli_args_test_selection = {json.dumps(settings['tests'])}",
    ]
    project = (ROOT / "pyproject.toml").read_text().replace("[tool.mutmut]", "\n".join(lines))
    (folder / "pyproject.toml").write_text(project)
    return folder


def mutmut(folder: Path, *arguments: str, minutes: float = 15.0) -> str:
    """Run mutmut in a folder; what it prints, which is a spinner for the most part."""
    # Threads do not survive the fork from which every change is tried.
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=folder,
        env={**os.environ, **one_thread},
        timeout=60 * minutes,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode and arguments[0] != "run":
        sys.exit(done.stdout[-3000:])
    return done.stdout


def mutants(folder: Path) -> list[str]:
    """The names of all changes."""
    said = mutmut(folder, "run", "no-such-change")  # makes the changes, and tries none of them
    names = sorted(results(folder))
    if not names:
        sys.exit(said[-3000:])
    return names


def results(folder: Path) -> dict[str, str]:
    """What is known of every change: `killed`, `survived`, `not checked`, ..."""
    lines = mutmut(folder, "results", "--all", "true").splitlines()
    parts = (line.strip().rpartition(": ") for line in lines)
    return {name: state for name, _, state in parts if name}


def report(room: str, folder: Path, sample: list[str], count: int) -> None:
    """Print the changes that nothing has noticed, and how many those are."""
    found = {name: state for name, state in results(folder).items() if name in set(sample)}
    for name, state in found.items():
        if state in KNOWN and state not in NOTICED:
            write(f"{state}: {mutmut(folder, 'show', name)}")
    states = Counter(found.values())
    tried = sum(states[state] for state in KNOWN)
    killed = sum(states[state] for state in NOTICED)
    share = f"{killed / tried:.0%}" if tried else "none"
    write(f"{room}: {killed} of {tried} changes noticed ({share}), of {count:,} there are")


def write(text: str) -> None:
    """Print."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
