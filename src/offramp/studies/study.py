"""A study file: what is trained, compared and reported, read from TOML and checked.

The sections `[data]`, `[network]`, `[train]`, `[record]` and `[ledgers]` describe one network. A
study of several networks has a table `[networks.NAME]` for each, with the same sections inside;
sections at the top then apply to all of them. `[scales.NAME]` holds what differs at a scale.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from offramp.errors import ConfigError, FileFormatError
from offramp.registry import or_known
from offramp.studies.settings import (
    CompareSettings,
    CorrectorSettings,
    DataSettings,
    LedgerSettings,
    NetworkSettings,
    RecordSettings,
    ReportSettings,
    TrainSettings,
)
from offramp.studies.toml import Mistakes, filled, reject_unknown

_TRAINED: dict[str, type] = {
    "data": DataSettings,
    "network": NetworkSettings,
    "train": TrainSettings,
    "record": RecordSettings,
}
_SECTIONS = {**_TRAINED, "ledgers": LedgerSettings}
_SHARED: dict[str, type] = {
    "compare": CompareSettings,
    "corrector": CorrectorSettings,
    "report": ReportSettings,
}
_TEXTS = ("title", "paper", "note", "from")
_TOP = ("title", "about", "networks", "scales", *_SHARED, *_SECTIONS)


@dataclass(frozen=True)
class NetworkEntry:
    """One network of a study: how to train and record it, or where its ledgers are."""

    name: str  # for folders and messages
    title: str  # for the report
    # heading in the paper's table whose figures are shown beside this network's, by test domain;
    # under an empty name where there are no domains
    paper: dict[str, str] = field(default_factory=dict)
    note: str = ""  # for the report
    # given together with `network`, `train` and `record`; None if there are `ledgers`
    data: DataSettings | None = None
    network: NetworkSettings | None = None
    train: TrainSettings | None = None
    record: RecordSettings | None = None
    ledgers: LedgerSettings | None = None  # existing ledgers; None if they are recorded


@dataclass(frozen=True)
class Study:
    """A whole study file at one scale.

    Args:
        name: Of the file, without its suffix.
        title: For the report.
        about: What it is for, in a sentence.
        scale: Which of the file's scales; None if it has none.
        networks: The networks.
        compare: Which methods.
        corrector: Settings of the correctors among them.
        report: What else is reported.
        folder: Of the file; paths in the file are relative to it.
        changes: Values that replaced those in the file.
    """

    name: str
    title: str
    about: str
    scale: str | None
    networks: tuple[NetworkEntry, ...]
    compare: CompareSettings
    corrector: CorrectorSettings
    report: ReportSettings
    folder: Path
    changes: dict[str, Any] = field(default_factory=dict)

    def only(self, names: Sequence[str]) -> "Study":
        """The same study with some of its networks.

        Raises:
            ConfigError: The study has no network of that name.
        """
        known = [entry.name for entry in self.networks]
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.name} has no network `{name}`{or_known(name, known)}")
        return replace(self, networks=tuple(s for s in self.networks if s.name in names))


def read_study(
    path: str | Path, scale: str | None = None, changes: Mapping[str, Any] | None = None
) -> Study:
    r"""Read a study file.

    Args:
        path: Of the TOML file.
        scale: Which of its `[scales]`; required if there are any.
        changes: Values that replace those in the file, by dotted key: `train.epochs` for all
            networks, `networks.NAME.train.epochs` for one.

    Raises:
        ConfigError: Unknown keys, wrong types or impossible combinations; the message lists all
            of them with their places and the nearest valid keys.
        FileFormatError: There is no such file, or it is not TOML.

    Example:
        >>> import tempfile
        >>> text = '[ledgers]\nzoo = "cifar100"'
        >>> path = Path(tempfile.mkdtemp()) / "mine.toml"
        >>> _ = path.write_text(text)
        >>> read_study(path, changes={"compare.seeds": 1}).compare.seeds
        1
    """
    path = Path(path)
    table = _at_scale(_read(path), scale, path)
    for key, value in (changes or {}).items():
        _put(table, key, value)
    mistakes, made = Mistakes(), dict[str, Any]()
    with mistakes.noted():
        reject_unknown(table, _TOP, path.name)
    for key, default in (("title", path.stem), ("about", "")):
        with mistakes.noted():
            made[key] = _text(table, key, default)
    with mistakes.noted():
        networks = _Networks(path, scale, changes or {})
        made["networks"] = networks.networks(table, made.get("title", path.stem))
    for key, cls in _SHARED.items():
        with mistakes.noted():
            made[key] = filled(cls, table.get(key, {}), f"[{key}]")
    mistakes.check(path.name)
    folder, given = path.resolve().parent, dict(changes or {})
    return Study(name=path.stem, scale=scale, folder=folder, changes=given, **made)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise FileFormatError(f"there is no study file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} is not valid TOML: {error}") from None


def _at_scale(table: dict[str, Any], scale: str | None, path: Path) -> dict[str, Any]:
    scales = table.pop("scales", {})
    if not isinstance(scales, dict):
        raise ConfigError(f"[scales] must hold one table per scale, got {scales!r}")
    if scale is None and not scales:
        return table
    if scale is None or scale not in scales:
        has = f"has the scales {', '.join(scales)}" if scales else "has no [scales]"
        raise ConfigError(f"{path.name} {has}: choose one of them with --scale, got {scale!r}")
    reject_unknown(scales[scale], _TOP, f"[scales.{scale}]")
    return _merged(table, scales[scale])


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables; replace everything else."""
    merged = deepcopy(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        merged[key] = _merged(old, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return merged


def _put(table: dict[str, Any], key: str, value: Any) -> None:  # noqa: ANN401
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"cannot set `{key}`: `{parent}` is not a table")
    table[last] = value


def _text(table: Mapping[str, Any], key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"`{key}` must be a string, got {value!r}")
    return value


@dataclass(frozen=True)
class _Networks:
    """The networks of a file; they may come from another file beside it, at the same scale."""

    path: Path
    scale: str | None
    changes: Mapping[str, Any] = field(default_factory=dict)
    behind: tuple[Path, ...] = ()  # files that lead to this one by `from`

    def networks(self, table: dict[str, Any], title: str) -> tuple[NetworkEntry, ...]:
        shared = {key: table[key] for key in _SECTIONS if key in table}
        networks = table.get("networks")
        if networks is None:
            return (_network_entry(self.path.stem, {"title": title, **shared}, ""),)
        if not isinstance(networks, dict) or not networks:
            raise ConfigError("[networks] must hold one table per network: [networks.NAME]")
        found, mistakes = [], Mistakes()
        for key, own in networks.items():
            with mistakes.noted():
                _check_keys(own, f"[networks.{key}]")
                whole = self._changed(key, _inherited(shared, self._with_origin(key, own)))
                found.append(_network_entry(key, whole, f"networks.{key}."))
        mistakes.check(self.path.name)
        self._check_effect(found)
        return tuple(found)

    def _changed(self, key: str, whole: dict[str, Any]) -> dict[str, Any]:
        """The entry of a network, with the changes above all that files say."""
        kind = ("ledgers",) if "ledgers" in whole else tuple(_TRAINED)
        for dotted, value in self.changes.items():
            own = dotted.removeprefix(f"networks.{key}.")
            if own.partition(".")[0] in kind:
                _put(whole, own, value)
        return whole

    def _check_effect(self, networks: Sequence[NetworkEntry]) -> None:
        for dotted in self.changes:
            section = dotted.partition(".")[0]
            if section in _SECTIONS and all(getattr(each, section) is None for each in networks):
                why = "are trained" if section == "ledgers" else "have existing ledgers"
                raise ConfigError(
                    f"`{dotted}` would change nothing: the networks of {self.path.name}"
                    f"{f' at the scale {self.scale}' if self.scale else ''} {why}"
                )

    def _with_origin(self, key: str, own: dict[str, Any]) -> dict[str, Any]:
        """The entry of a network, merged over that of the study in `from`."""
        if "from" not in own:
            return own
        origin = self.path.with_name(f"{own['from']}.toml")
        table = _at_scale(_read(origin), self.scale, origin)
        theirs = table.get("networks", {})
        if key not in theirs:
            raise ConfigError(
                f"[networks.{key}] `from`: {origin.name} has no network `{key}`"
                f"{or_known(key, theirs)}"
            )
        shared = {each: table[each] for each in _SECTIONS if each in table}
        if origin in self.behind or origin == self.path:
            circle = " <- ".join(path.name for path in (origin, self.path, *self.behind))
            raise ConfigError(f"[networks.{key}] `from` leads back to its own file: {circle}")
        before = _Networks(origin, self.scale, behind=(self.path, *self.behind))
        there = before._with_origin(key, theirs[key])
        rest = {each: value for each, value in own.items() if each != "from"}
        return _merged(_inherited(shared, there), rest)


def _check_keys(own: object, place: str) -> None:
    if not isinstance(own, dict):
        raise ConfigError(f"{place} must be a table, got {own!r}")
    reject_unknown(own, (*_SECTIONS, *_TEXTS), place)


def _inherited(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A network's own sections, merged over the shared ones.

    A network with ledgers of its own does not inherit how to train one, and vice versa.
    """
    others: Iterable[str] = ()
    if "ledgers" in own:
        others = _TRAINED
    elif _TRAINED.keys() & own:
        others = ("ledgers",)
    return _merged({key: value for key, value in shared.items() if key not in others}, own)


def _network_entry(name: str, table: dict[str, Any], place: str) -> NetworkEntry:
    mistakes, made = Mistakes(), dict[str, Any]()
    if "ledgers" in table:
        clash = [f"[{place}{key}]" for key in _TRAINED if key in table]
        if clash:
            raise ConfigError(
                f"[{place}ledgers] exist already, and {', '.join(clash)} would have no effect; "
                "leave out one or the other"
            )
    else:
        mistakes.texts += [
            f"[{place}{key}] is missing: a study needs [data] and [network] to record ledgers, or "
            "existing [ledgers]"
            for key in ("data", "network")
            if key not in table
        ]
        table = {"train": {}, "record": {}, **table}
    for key in ("title", "note"):
        with mistakes.noted():
            made[key] = _text(table, key, "")
    for key, cls in _SECTIONS.items():
        if key in table:
            with mistakes.noted():
                made[key] = filled(cls, table[key], f"[{place}{key}]")
    with mistakes.noted():
        made["paper"] = _paper(table.get("paper", {}), place)
    mistakes.check(f"[{place.rstrip('.')}]")
    made["title"] = made["title"] or name
    return _with_cascade(NetworkEntry(name=name, **made), place)


def _paper(value: object, place: str) -> dict[str, str]:
    headings = {"": value} if isinstance(value, str) else value
    if not isinstance(headings, dict) or not all(isinstance(x, str) for x in headings.values()):
        raise ConfigError(
            f"[{place.rstrip('.')}] `paper` must be a heading of the paper's table, or a table "
            f"with one heading per test domain, got {value!r}"
        )
    return headings


_CASCADES = {None: "cascade", "mixed-pool": "mixed-cascade"}  # forms that read logits


def _with_cascade(entry: NetworkEntry, place: str) -> NetworkEntry:
    """Zero time waste needs heads that read logits, and gets those unless the file names them."""
    train, network = entry.train, entry.network
    if train is None or network is None or train.objective != "zero-time-waste":
        return entry
    head = _CASCADES.get(network.head, network.head)
    if head not in _CASCADES.values():
        raise ConfigError(
            f'[{place}train] objective = "zero-time-waste" needs heads that see the logits of the '
            f'exit before: [{place}network] head must be "cascade", "mixed-cascade" or left out, '
            f"got {network.head!r}"
        )
    return replace(entry, network=replace(network, head=head))
