"""Methods of installed packages: imported when named, and by no file."""

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from offramp import Policy, synthetic
from offramp.cli.app import app
from offramp.component import Component
from offramp.errors import ConfigError, FileFormatError, PluginError
from offramp.files import accept
from offramp.methods import find_methods
from offramp.registry import METHODS

SCORERS = """
from dataclasses import dataclass

import offramp
from offramp.arrays import namespace


@dataclass
class LogitMargin(offramp.Scorer):
    def score_at(self, history):
        top = namespace(history.answer).sort(history.answer, axis=1)
        return top[:, -1] - top[:, -2]


@dataclass
class Needy(offramp.Scorer):
    weight: float

sharp = offramp.Method("any", "Sharpened", answer=offramp.TemperatureScaling(multiplier=0.5))
baseline = 3
"""
METADATA = "Metadata-Version: 2.1\nName: offramp-margins\nVersion: 2.1\n"
ENTRY_POINTS = """
[offramp.methods]
logit-margin = offramp_margins:LogitMargin
sharp = offramp_margins:sharp
needy = offramp_margins:Needy
number = offramp_margins:baseline
gone = offramp_margins:Gone
broken = offramp_margins_broken:Thing
baseline = offramp_margins:sharp
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package as installers leave it in a folder of the path."""
    target = tmp_path_factory.mktemp("installed")
    (target / "offramp_margins.py").write_text(SCORERS)
    (target / "offramp_margins_broken.py").write_text("import no_such_library\n")
    described = target / "offramp_margins-2.1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(METADATA)
    (described / "entry_points.txt").write_text(ENTRY_POINTS)
    return target


@pytest.fixture
def installed(package, monkeypatch):
    """The package on the path of this process, forgotten afterwards."""
    monkeypatch.syspath_prepend(package)
    forget()
    yield package
    forget()


def forget():
    """As if the package's code had never been imported."""
    sys.modules.pop("offramp_margins", None)
    for name in ("LogitMargin", "Needy"):
        Component._known.pop(name, None)


def call(*arguments):
    """The command line in this process; its errors are raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result


def write_npz(path):
    ledger = synthetic.ledgers(seed=0, samples=300, exits=4, classes=8)["test"]
    np.savez(path, logits=ledger.logits, labels=ledger.labels, costs=ledger.costs)
    return path


def test_a_registered_scorer_is_compared_by_its_name(installed, tmp_path):
    logits = write_npz(tmp_path / "mine.npz")
    options = ["--out", tmp_path / "o", "--resamples", 20]
    result = call("compare", logits, "--methods", "baseline,logit-margin", *options)
    assert "LogitMargin" in result.stdout
    assert "offramp_margins" in sys.modules


def test_a_saved_policy_does_not_import_a_package(installed, tmp_path):
    splits = synthetic.ledgers(seed=0, samples=60, exits=3, classes=8)
    (method,) = find_methods(["logit-margin"], num_classes=8)
    folder = method.policy().fit(splits["held_out"]).tune(splits["val"]).save(tmp_path / "policy")
    forget()
    message = (
        "unknown scorer 'LogitMargin'; the package offramp-margins 2.1 has one of that name; .*"
        "import offramp_margins before loading, or .* say offramp --plugin logit-margin"
    )
    with pytest.raises(FileFormatError, match=message):
        call("inspect", folder)
    assert "offramp_margins" not in sys.modules
    assert "LogitMargin" in call("--plugin", "logit-margin", "inspect", folder).stdout
    message = "--plugin: no installed package has a method 'margin'; .*logit-margin"
    with pytest.raises(ConfigError, match=message):
        call("--plugin", "margin", "inspect", folder)


def test_a_method_a_scorer_and_thresholds_can_be_asked_for(installed):
    sharp, margin = find_methods(["sharp", "logit-margin:smooth"], num_classes=8)
    assert (sharp.name, sharp.label, sharp.answer.multiplier) == ("sharp", "Sharpened", 0.5)
    assert (margin.name, margin.thresholds) == ("logit-margin:smooth", "smooth")
    assert type(margin.scorer).__name__ == "LogitMargin"


def test_the_librarys_own_methods_cannot_be_replaced(installed):
    assert METHODS.plugins()["baseline"] == "offramp-margins 2.1"
    assert find_methods(["baseline"], 8) == [METHODS["baseline"]]
    assert "offramp_margins" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "broken",
            "'broken' of the package offramp-margins 2.1 cannot be loaded from "
            "offramp_margins_broken:Thing: ModuleNotFoundError: No module named "
            "'no_such_library'; update or uninstall offramp-margins",
        ),
        ("gone", "'gone' of the package offramp-margins 2.1 cannot be loaded from .*Attribute"),
        ("needy", "'needy' of the package offramp-margins 2.1 cannot be made without settings"),
        ("number", "'number' of the package .* is a int, and should be an offramp.Method, Scorer"),
    ],
)
def test_a_broken_package_is_named(installed, name, message):
    with pytest.raises(PluginError, match=message):
        find_methods([name], 8)


def test_two_packages_with_one_name_are_both_named(installed, tmp_path, monkeypatch):
    other = tmp_path / "rivals-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: rivals\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[offramp.methods]\nlogit-margin = rivals:Other\n")
    monkeypatch.syspath_prepend(tmp_path)
    message = "'logit-margin' is registered by rivals 1.0 and offramp-margins 2.1; uninstall one"
    with pytest.raises(PluginError, match=message):
        find_methods(["logit-margin"], 8)


def test_an_unknown_name_is_told_from_those_of_packages(installed):
    with pytest.raises(ConfigError, match="did you mean `logit-margin`"):
        find_methods(["logit_margin"], 8)


def test_where_no_class_has_the_name_all_packages_are_listed(installed, tmp_path):
    splits = synthetic.ledgers(seed=0, samples=60, exits=3, classes=8)
    folder = Policy(METHODS["baseline"].scorer.clone()).fit(splits["held_out"]).save(tmp_path)
    file = folder / "policy.json"
    file.write_text(file.read_text().replace("MaxProbability", "Elsewhere"))
    accept(folder)
    message = "if it is your own class, import its module.*--plugin NAME .*sharp"
    with pytest.raises(FileFormatError, match=message):
        Policy.load(folder)
