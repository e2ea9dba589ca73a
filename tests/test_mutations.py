"""A folder that was changed in any place loads as it was, or not at all with a clear error.

`OFFRAMP_MUTATIONS=1000 pytest tests/test_mutations.py -s` tries as many of each kind and prints
what came of them.
"""

import json
import os
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import offramp
from offramp import Ledger, Policy, synthetic
from offramp.data.source import Source
from offramp.errors import OfframpError
from offramp.evaluation import compare
from offramp.files import write_text
from offramp.made import is_whole, once
from offramp.networks import EarlyExitNetwork
from offramp.plan import Plan
from offramp.report import read_comparison, write_comparison
from offramp.timing import Profile
from offramp.training.checkpoint import Place, RunFiles, TrainHistory

MUTATIONS = int(os.environ.get("OFFRAMP_MUTATIONS", "12"))
LEDGERS = synthetic.ledgers(seed=0, samples=60)


def policy():
    made = Policy(offramp.MaxProbability()).fit(LEDGERS["held_out"]).tune(LEDGERS["val"])
    return made.at(budget=0.6)


def network():
    torch.manual_seed(0)
    return offramp.build("convnet", num_classes=3, image_size=8, at=2).eval()


def save_export(folder):
    pytest.importorskip("onnxruntime")
    images = torch.rand(120, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(images, torch.arange(120) % 3)
    held_out, val, _ = offramp.record(network(), data, "all", progress=False).partition()
    chosen = Policy(offramp.MaxProbability()).fit(held_out).tune(val).at(budget=0.8)
    offramp.export(network(), chosen, folder, full=False)


def load_export(folder):
    runner = offramp.OnnxRunner(folder, threads=1)
    output = runner(np.zeros((2, 3, 8, 8), np.float32))
    return runner.about, str(runner.inputs), runner.manifest.notes, output.logits.tolist()


def save_profile(folder):
    rows, by_exit = [0.3, 0.7], [[0.1, 0.2], [0.3, 0.4]]
    words = dict.fromkeys(("runtime", "device", "machine", "network", "decided_by"), "a")
    parts = dict.fromkeys(("stages", "overheads", "overheads_reading_back"), by_exit)
    sizes = {"sizes": [1, 8], "full": rows, "call": rows, "spread": rows}
    Profile(**words, **parts, **sizes, threads=1, exits=[0, 1]).save(folder)


def save_checkpoint(folder):
    RunFiles(folder, {}).save(Place(), TrainHistory(), {"network.weight": torch.arange(8.0)})


def load_checkpoint(folder):
    found = RunFiles(folder, {}).load()
    if found is None:
        return None  # nothing to resume from
    place, history, tensors = found
    return str(place), str(history), {name: each.tolist() for name, each in tensors.items()}


def save_plan(folder):
    chosen = policy()
    policies = {0.6: chosen, 0.9: chosen.at(budget=0.9)}
    Plan(policies, [0, 1], {0.6: "a", 0.9: "b"}, {0.6: "why", 0.9: "so"}).save(folder)


def load_plan(folder):
    plan = Plan.load(folder)
    policies = {budget: (each.fingerprint(), each.selected) for budget, each in plan.items()}
    return policies, plan.exits, plan.methods, plan.why, plan.accuracies


def save_comparison(folder):
    write_comparison(
        compare(**LEDGERS, methods=["baseline"], budgets=(0.5,), seeds=1), folder, page=False
    )


def load_comparison(folder):
    comparison, origin = read_comparison(folder)
    return comparison.to_json(), origin


def make_sum(place):
    write_text(place / "sum.json", '{"sum": 3.5}')


def save_result(folder):
    once(folder, {"terms": [1, 2]}, make_sum)


def load_result(folder):
    """It is made again where it is not whole; what it holds then is right."""
    once(folder, {"terms": [1, 2]}, make_sum)
    assert is_whole(folder, {"terms": [1, 2]})
    return json.loads((folder / "sum.json").read_text())


def parts_of(value):
    """Everything that a ledger or policy holds, as comparable values."""
    return {name: plain_of(each) for name, each in sorted(vars(value).items())}


def plain_of(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain_of(each) for key, each in value.items()}
    return str(value)


def load_network(folder):
    loaded = EarlyExitNetwork.load(folder)
    heads = [str(each) for each in loaded.heads]
    return loaded.fingerprint(), str(loaded.inputs), loaded.exit_names, heads


KINDS = {
    "ledger": (LEDGERS["val"].save, lambda folder: parts_of(Ledger.load(folder))),
    "policy": (
        lambda folder: policy().save(folder),
        lambda folder: (Policy.load(folder).fingerprint(), parts_of(Policy.load(folder))),
    ),
    "network": (lambda folder: network().save(folder), load_network),
    "export": (save_export, load_export),
    "profile": (save_profile, lambda folder: parts_of(Profile.load(folder))),
    "plan": (save_plan, load_plan),
    "checkpoint": (save_checkpoint, load_checkpoint),
    "comparison": (save_comparison, load_comparison),
    "result": (save_result, load_result),
    "data of a run": (Source("digits", "d").save, Source.find),
}


def places(value, path=()):
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))


def change_value(path, chance):
    """Another value, name or order in a description."""
    content = json.loads(path.read_text())
    *parents, last = chance.choice(list(places(content)))
    table = content
    for key in parents:
        table = table[key]
    value, way = table[last], chance.randrange(6)
    if way == 0:
        del table[last]
    elif way == 1 and isinstance(table, dict):
        table[f"{last}x"] = table.pop(last)
    elif isinstance(value, int | float) and way < 5:
        table[last] = chance.choice(
            [value * 1.01 + 0.01, -value, value + 1, str(value), bool(value)]
        )
    else:
        odd = [None, True, -1, 10**30, 1e308, "", "x", [], {}, [value], {"a": value}, "../x"]
        table[last] = chance.choice(odd)
    path.write_text(json.dumps(content))


def change_bytes(path, chance):
    """Flipped, lost or additional bytes."""
    content = bytearray(path.read_bytes()) or bytearray(1)
    place = chance.randrange(len(content) + 1)
    way = chance.randrange(5)
    if way == 0:
        del content[place:]
    elif way == 1:
        content[place:place] = chance.randbytes(chance.randrange(1, 9))
    elif way == 2:
        content += chance.randbytes(3)
    else:
        place = min(place, len(content) - 1)
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def change_file(path, chance):
    """No file, a link in a circle or out of the folder, or a folder in its place."""
    content = path.read_bytes()
    path.unlink()
    way = chance.randrange(4)
    if way == 0:
        path.symlink_to(path.name)
    elif way == 1:
        outside = path.parents[1] / "outside"
        outside.write_bytes(content)
        path.symlink_to(outside)
    elif way == 2:
        path.mkdir()


def changed(folder, chance):
    """One change in one file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    path = chance.choice(
        [each for each in files if each.suffix not in (".md", ".csv", ".svg", ".pdf")]
    )
    is_json, way = path.suffix == ".json", chance.random()
    change = change_value if is_json and way < 0.7 else change_bytes if way < 0.92 else change_file
    change(path, chance)
    return f"{change.__name__} of {path.name}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_folder_loads_as_it_was_or_not_at_all(kind, tmp_path):
    save, load = KINDS[kind]
    save(tmp_path / "whole")
    expected, counts = load(tmp_path / "whole"), Counter()
    for number in range(MUTATIONS):
        chance, folder = random.Random(number), tmp_path / "changed"
        shutil.copytree(tmp_path / "whole", folder)
        what = changed(folder, chance)
        try:
            found = load(folder)
        except OfframpError as error:
            assert str(error)
            counts["clear errors"] += 1
        except Exception as error:
            pytest.fail(f"{number}, {what}: raw {error!r}")
        else:
            is_gone = found is None and what.startswith("change_file")
            assert is_gone or found == expected, f"{number}, {what}: loaded with other content"
            counts["nothing there" if is_gone else "identical"] += 1
        shutil.rmtree(folder)
        Path(tmp_path / "outside").unlink(missing_ok=True)
    sys.stdout.write(f"{kind}: {dict(counts)} of {MUTATIONS}\n")
