"""Describe what offramp has written: ledgers, policies, networks, exports, folders of ledgers."""

import math
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from offramp.errors import FileFormatError
from offramp.evaluation.references import fixed_exits
from offramp.evaluation.words import NETWORK, Words, words_for, words_of
from offramp.files import (
    KINDS,
    StoredFile,
    kind_of,
    near_path,
    read_folder,
    read_sealed,
    restore,
    stored_in,
)
from offramp.ledger import Ledger
from offramp.ledger.origin import SPLITS
from offramp.onnx.manifest import Manifest
from offramp.policy import Policy
from offramp.report.clock import profile_table
from offramp.report.tables import ResultTable, cells, quantity
from offramp.targets import hopeless


def inspect(path: str | Path) -> list[ResultTable]:
    """Describe a ledger, an `.npz`, a policy, a network, an export, a profile, or ledgers.

    Of any other folder, everything that offramp has written below it is listed. All files are
    compared with the checksums that were written with them.

    Raises:
        FileFormatError: Nothing there was written by offramp, or a file is damaged.
    """
    path = Path(path)
    if not path.exists():
        raise FileFormatError(f"there is nothing at {path}{near_path(path)}")
    if path.is_file():
        split = path.stem if path.stem in SPLITS else "all"
        return _ledger(path, Ledger.load(path, split=split))
    match kind_of(path):
        case "ledger":
            return _ledger(path, Ledger.load(path))
        case "policy":
            return _policy(path, Policy.load(path))
        case "network":
            return _network(path)
        case "export":
            return _export(path)
        case "profile":
            from offramp.timing.results import Profile

            return [profile_table(Profile.load(path))]
    if (path / "comparison.json").is_file():
        raise FileFormatError(
            f"{path} is a comparison: its tables are in comparison.md, and its page is "
            "report.html, which offramp report writes again"
        )
    inside = [path / f"{split}{suffix}" for split in SPLITS for suffix in ("", ".npz")]
    found = [place for place in inside if place.exists()]
    return [table for place in found for table in inspect(place)] or [_contents(path)]


def _contents(folder: Path) -> ResultTable:
    """What offramp has written below a folder."""
    files = whole_files(folder)
    rows = []
    for place in _descriptions(folder):
        sizes = [file.bytes for path, file in files.items() if path.parent == place.parent]
        of = place.parent.relative_to(folder)
        rows.append(cells(of, place.stem, len(sizes), decimal(sum(sizes))))
    if not rows:
        raise FileFormatError(f"{folder} holds no ledger, policy or network, nor any below it")
    columns = ["folder", "holds a", "files", "size"]
    return ResultTable("contents", f"Below {folder}", columns, rows, "All files are as written.")


def _ledger(path: Path, ledger: Ledger) -> list[ResultTable]:
    words = words_for(ledger)
    facts = {
        "split": ledger.split,
        "samples": f"{len(ledger):,}"
        + ("" if ledger.groups is None else f" in {ledger.num_units:,} groups"),
        words.stages: str(ledger.num_exits),
        "classes": str(ledger.num_classes)
        if ledger.has_logits
        else f"none: {ledger.history_type.name}",
        "stored as": str(ledger.dtype),
        "network": ledger.network or "unknown",
        "sample ids": "unknown" if ledger.sample_ids is None else f"{ledger.data_fingerprint}",
        "cost unit": _unit(ledger),
        words.of("cost of the network without exits"): quantity(ledger.reference_cost),
    }
    accuracies, caption = ["unknown"] * ledger.num_exits, "There are no labels."
    if ledger.has_labels:
        correct = ledger.heads_correct
        accuracies = [f"{row.accuracy:.2%}" for row in fixed_exits(ledger, correct)]
        lost = float(hopeless(correct).mean())
        caption = f"{lost:.1%} of the samples are hopeless: no {words.stage} gets them right."
    shares = ledger.costs / ledger.reference_cost
    exits = [
        cells(number, quantity(float(cost)), f"{float(share):.1%}", accuracy)
        for number, (cost, share, accuracy) in enumerate(
            zip(ledger.costs, shares, accuracies, strict=True)
        )
    ]
    columns = [words.stage, "cost up to here", "share", "accuracy"]
    table = ResultTable("exits", words.stages.capitalize(), columns, exits, caption)
    return [_facts("Ledger", path, facts), table]


def _policy(path: Path, policy: Policy) -> list[ResultTable]:
    uses = [f"{use.step} on {use.samples:,} of {use.split}" for use in policy.uses]
    facts = {
        "answer": str(policy.answer),
        "scorer": str(policy.scorer),
        "network": policy.network or "unknown",
        "data used": ", ".join(uses),
    }
    words = NETWORK
    if policy.cost_model is not None:
        words = words_of(policy.history_type.has_logits, policy.cost_model)
        exits = ", ".join(map(str, policy.exits))
        named = words.stages if words is not NETWORK else "exits of the network"
        facts |= {named: exits, "cost unit": _unit(policy)}
    if policy.made is not None:
        facts = {"made": str(policy.made), **facts}
    if policy.is_tuned:
        points = policy.points
        ends = f"{float(points.budgets.min()):.1%} to {float(points.budgets.max()):.1%}"
        facts["operating points"] = f"{len(points)}, at {ends} of {words.whole}"
    if policy.guarantee is not None:
        facts["guarantee"] = policy.guarantee
    if policy.is_tuned and policy.selected is None:
        facts["operating point"] = "not chosen yet: pass --budget, or use policy.at(...) in Python"
    found = [_facts("Policy", path, facts)]
    if policy.is_tuned:
        found.append(_budgets(policy, words))
    return found if policy.selected is None else [*found, _point(policy, policy.selected, words)]


def _unit(priced: Ledger | Policy) -> str:
    """The unit of costs, and where they were measured."""
    assert priced.cost_model is not None
    unit, times = priced.cost_model.unit, priced.batch_times
    return f"{unit} ({times.origin})" if times is not None and times.origin else unit


SHOWN = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Budgets at which a policy is shown."""


def _budgets(policy: Policy, words: Words) -> ResultTable:
    """The operating points that a few budgets lead to: cost, accuracy and thresholds."""
    points = policy.points
    reached = [budget for budget in SHOWN if budget >= float(points.budgets[0])]
    rows = []
    for budget in reached:
        index = points.nearest(budget)
        accuracy = float(points.accuracies[index])
        rows.append(
            cells(
                f"{budget:.0%}",
                f"{float(points.budgets[index]):.1%}",
                "unknown" if math.isnan(accuracy) else f"{accuracy:.2%}",
                " ".join(f"{float(each):.3g}" for each in points.thresholds[index][:-1]),
            )
        )
    split = _tuned_on(policy)
    full = "" if math.isnan(points.full_accuracy) else f"; {words.full} {points.full_accuracy:.2%}"
    columns = ["--budget", f"cost on {split}", "accuracy"]
    columns.append(f"thresholds, {words.stage} by {words.stage}")
    expected = "to be expected" if split == "val" else f"on {split}, no estimate for new samples"
    caption = f"Accuracy: {expected}{full}. {words.of('inf closes the exit')}."
    return ResultTable("budgets", "Over budgets", columns, rows, caption)


def _tuned_on(policy: Policy) -> str:
    """The split that the operating points come from."""
    return next((use.split for use in reversed(policy.uses) if use.step == "tune"), "val")


def _point(policy: Policy, selected: int, words: Words) -> ResultTable:
    points = policy.points
    columns = zip(policy.exits, policy.thresholds, points.shares[selected], strict=True)
    rows = [
        cells(number, f"{float(threshold):.6g}", f"{float(share):.1%}")
        for number, threshold, share in columns
    ]
    split = _tuned_on(policy)
    # The accuracy on the samples that a policy was fitted on is no estimate for others.
    expected = ", to be expected on similar samples" if split == "val" else ""
    caption = f"Chosen on {split}: {float(points.budgets[selected]):.1%} of the cost and "
    if math.isnan(points.full_accuracy):
        caption += f"an accuracy that is not known, since {split} had no labels."
    else:
        caption += (
            f"{float(points.accuracies[selected]):.2%} accuracy{expected}; "
            f"the {words.full} reaches {points.full_accuracy:.2%} on {split}."
        )
    names = [words.stage, "threshold", f"leave on {split}"]
    return ResultTable("point", f"Operating point {selected}", names, rows, caption)


def _network(path: Path) -> list[ResultTable]:
    """What the file says, and the costs, unless the backbone is the user's own class."""
    from offramp.networks import EarlyExitNetwork, count_macs
    from offramp.networks.files import FORMAT_VERSION as NETWORK_VERSION

    meta, tensors = read_folder(path, "network", NETWORK_VERSION)
    members = meta.get("members", [meta])
    backbones = [member["backbone"] for member in members]
    facts = {
        "backbone": ", then ".join(
            backbone["builder"] or f"{backbone.get('class_name')}, your own"
            for backbone in backbones
        ),
        "settings": ", then ".join(
            ", ".join(f"{key}={value}" for key, value in backbone["settings"].items())
            for backbone in backbones
        ),
        "classes": str(members[0]["num_classes"]),
        "weights and buffers": f"{sum(tensor.size for tensor in tensors.values()):,}",
        "fingerprint": meta["fingerprint"],
    }
    exits = [
        (f"{number}.{name}" if len(members) > 1 else name, head)
        for number, member in enumerate(members)
        for name, head in zip([*member["at"], "last"], member["heads"], strict=True)
    ]
    rows = [
        cells(number, name, head["name"] if head else "the backbone's own")
        for number, (name, head) in enumerate(exits)
    ]
    columns = ["exit", "after", "head"]
    if all(backbone["builder"] for backbone in backbones):
        costs = count_macs(EarlyExitNetwork.load(path)).cumulative
        columns.append("MACs up to here")
        rows = [cells(*row, f"{int(cost):,}") for row, cost in zip(rows, costs, strict=True)]
    return [_facts("Network", path, facts), ResultTable("exits", "Exits", columns, rows)]


def _export(path: Path) -> list[ResultTable]:
    manifest = Manifest.read(path)
    policy = manifest.load_policy(path)
    facts = {
        "inputs": str(manifest.inputs),
        "classes": str(policy.num_classes),
        "operating points": str(len(policy.points)),
        "network": manifest.network,
        "policy": manifest.policy,
    }
    shares, thresholds = policy.cost_shares, policy.thresholds
    rows = [
        cells(
            manifest.exit_names[segment.exit_index],
            segment.graph.file,
            f"{segment.graph.bytes:,}",
            f"{shares[segment.exit_index]:.1%}",
            f"{thresholds[segment.exit_index]:.6g}",
        )
        for segment in manifest.segments
    ]
    columns = ["exit", "graph", "bytes", "share", "threshold"]
    budget = policy.points.budgets[policy.selected]
    caption = f"At the chosen point the mean cost on val is {budget:.1%} of the full network's."
    return [_facts("Export", path, facts), ResultTable("exits", "Exits", columns, rows, caption)]


def _facts(kind: str, path: Path, facts: dict[str, str]) -> ResultTable:
    if path.is_dir():
        files = whole_files(path).values()
        compared = sum(file.sha256 is not None for file in files)
        size = decimal(sum(file.bytes for file in files))
        facts["files"] = f"{len(files)} of {size}, {compared} compared with their checksums"
    rows = [cells(*pair) for pair in facts.items()]
    return ResultTable("facts", f"{kind} {path}", ["", ""], rows)


def whole_files(folder: Path) -> dict[Path, StoredFile]:
    """All files below a folder that have been written with a checksum or a size, compared with it.

    Tensors of ledgers, policies, networks and checkpoints, graphs of exports, and results that
    were made once (`offramp.made`), of any size.

    Raises:
        FileFormatError: Some are not as they were written; all of these are named.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import mkdtemp
        >>> from offramp import synthetic
        >>> folder = synthetic.ledgers(seed=0)["val"].save(Path(mkdtemp()))
        >>> [path.suffix for path in whole_files(folder)]
        ['.safetensors']
    """
    named: dict[Path, dict[str, Any]] = {}
    files, damage = {}, []
    for description in _descriptions(folder):
        try:
            entries = list(
                stored_in(read_sealed(description, required=description.stem != "done"))
            )
        except FileFormatError as error:
            damage.append(str(error))
            continue
        for entry in entries:
            # What a script has made once is named twice, and has its checksum once.
            path = description.parent / entry["file"]
            named[path] = {**named.get(path, {}), **entry, "folder": description.parent}
    for path, entry in named.items():
        try:
            stored: StoredFile = restore(StoredFile, entry, str(path))
            stored.checked(entry["folder"])
            files[path] = stored
        except FileFormatError as error:
            damage.append(str(error))
    if damage:
        raise FileFormatError("; ".join(damage))
    return files


def _descriptions(folder: Path) -> list[Path]:
    names = {f"{kind}.json" for kind in (*KINDS, "plan", "checkpoint", "done")}
    return [path for path in sorted(folder.rglob("*.json")) if path.name in names]
