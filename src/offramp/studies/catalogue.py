"""The studies that come with offramp, what they need, and what of that is available here."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from offramp.data.catalog import located
from offramp.errors import ConfigError, OfframpError
from offramp.registry import EMBEDDED, STUDIES, or_known
from offramp.studies.cache import Cache
from offramp.studies.context import Context
from offramp.studies.pipeline import Pipeline, make_pipeline
from offramp.studies.study import Study, read_study

NAMES = STUDIES
SCALES = ("small", "paper")


def find_study(name: str) -> Path:
    """The file of a study.

    Raises:
        ConfigError: There is no such study.

    Example:
        >>> find_study("topk-ablation").name
        'topk-ablation.toml'
        >>> find_study("topk")
        Traceback (most recent call last):
        offramp.errors.ConfigError: there is no study `topk`; did you mean `topk-ablation`?
    """
    if name not in NAMES:
        raise ConfigError(f"there is no study `{name}`{or_known(name, NAMES)}")
    return Path(str(files("offramp.studies"))) / f"{name}.toml"


@dataclass(frozen=True)
class ListedScale:
    """A study at one scale."""

    scale: str  # `small` or `paper`
    needs: str  # data and networks
    state: str  # what of that is available here


@dataclass(frozen=True)
class ListedStudy:
    """One of the paper's experiments."""

    name: str  # for `offramp study NAME`
    about: str  # what it measures
    scales: tuple[ListedScale, ...]  # what each scale needs


def list_studies(cache: str | Path | None = None) -> list[ListedStudy]:
    """List every study at both scales; nothing is run.

    Args:
        cache: Folder of the cache; see `run`.
    """
    context = Context(Cache(cache), shown=False)
    found = []
    for name in NAMES:
        read = [read_study(find_study(name), scale) for scale in SCALES]
        scales = [ListedScale(s.scale or "", _needs(s), _state(s, context)) for s in read]
        found.append(ListedStudy(name, read[0].about, tuple(scales)))
    return found


def _needs(study: Study) -> str:
    """The data and networks of a study, in a few words."""
    found: dict[str, None] = {}
    for entry in study.networks:
        if entry.ledgers is not None:
            found.setdefault("shipped ledgers" if entry.ledgers.zoo else "ledgers")
        elif entry.data is not None and entry.network is not None:
            found.setdefault(f"{entry.data.name}, {entry.network.name}")
    return "; ".join(found)


def _state(study: Study, context: Context) -> str:
    try:
        pipeline = make_pipeline(study, context)
    except OfframpError as error:
        return f"missing: {error}"
    missing = _missing_data(study)
    trained = _trained(pipeline, context)
    state = f"data missing: {', '.join(missing)}" if missing else trained
    return f"not run; {state}" if study.scale == "paper" else state


def _missing_data(study: Study) -> list[str]:
    names = {entry.data.name: None for entry in study.networks if entry.data is not None}
    return [name for name in names if name not in EMBEDDED and located(name) is None]


def _trained(pipeline: Pipeline, context: Context) -> str:
    networks = [step for step in pipeline.steps if step.kind == "network"]
    if not networks:
        return "available"
    done = sum(step.is_done(context.cache) for step in networks)
    return f"data available; networks trained: {done} of {len(networks)}"
