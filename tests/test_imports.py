"""Names of packages are imported when they are asked for, and a missing package is named."""

import sys
from importlib import import_module
from types import ModuleType

import pytest

import offramp
from offramp import imports
from offramp.errors import MissingExtraError
from offramp.imports import LazyPackage


def test_every_name_of_the_front_door_is_there():
    for name in offramp.__all__:
        assert getattr(offramp, name) is not None
    assert set(offramp.__all__) <= set(dir(offramp))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        offramp.nonsense  # noqa: B018


def test_functions_stay_in_front_of_modules_of_the_same_name(monkeypatch):
    monkeypatch.delitem(sys.modules, "offramp.record", raising=False)
    assert isinstance(import_module("offramp.record"), ModuleType)
    assert callable(offramp.record)


@pytest.mark.parametrize("name", ["data", "networks", "onnx", "runtime", "serving", "training"])
def test_a_lazy_package_has_all_that_it_lists(name):
    package = import_module(f"offramp.{name}")
    assert isinstance(package, LazyPackage)
    assert set(package.__all__) <= set(dir(package))
    assert not any(isinstance(getattr(package, each), ModuleType) for each in package.__all__)


def test_a_broken_dependency_is_not_called_a_missing_extra(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import something_else_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_else_that_is_missing") as error:
        imports.require("half_there", "report")
    assert not isinstance(error.value, MissingExtraError)
