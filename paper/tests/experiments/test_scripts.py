"""Every experiment: its networks, its methods, the paper's figures; listed, and run by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from offramp.errors import ConfigError, FileFormatError
from offramp.methods import find_methods
from offramp_paper.experiments import NAMES, SCALES
from offramp_paper.experiments.command import find_experiment, studies, study
from offramp_paper.experiments.printed import paper_tables, printed_rows


def headings(script):
    """The headings of the paper's tables that a script names."""
    found = [each.heading for scale in script.NETWORKS.values() for each in scale]
    return {*found, *getattr(script, "HEADINGS", {}).values()} - {""}


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_says_what_it_is_and_names_what_there_is(name):
    script = find_experiment(name)
    assert script.__doc__ and script.main.__doc__
    assert find_methods(script.METHODS, num_classes=1000)
    for scale, networks in script.NETWORKS.items():
        assert scale in SCALES
        assert len({each.name for each in networks}) == len(networks) > 0
    table = getattr(script, "TABLE", None)
    for heading in headings(script) if table else ():
        assert printed_rows(table, heading)


def test_every_script_is_listed():
    folder = sys.modules["offramp_paper.experiments"].__path__[0]
    shared = {"__init__", "command", "network", "page", "printed", "run", "shift"}

    scripts = {path.stem for path in Path(folder).glob("*.py")} - shared
    assert {name.replace("-", "_") for name in NAMES} == scripts


def test_each_architecture_stands_for_its_own_family():
    families = {
        "resnet34-tinyimagenet": "thin-resnet",
        "vit-tiny-tinyimagenet": "vit",
        "msdnet-cifar100": "msdnet",
        "vit-small-imagenet": "vit",
        "efficientnet-b2-imagenet": "lite0",
    }
    for name, family in families.items():
        (network,) = find_experiment(name).NETWORKS["small"]
        assert family == (network.build or network.name)
    others = find_experiment("other-methods").NETWORKS
    assert [each.objective for each in others["small"]] == [
        each.objective for each in others["paper"]
    ]


def test_every_printed_row_has_as_many_figures_as_columns_and_a_known_method():
    for label, table in paper_tables().items():
        for rows in table["groups"].values():
            for method, values in rows.items():
                assert len(values) == len(table["columns"]), (label, method)
                assert find_methods([method], num_classes=1000)
    sketch = paper_tables()["tab:robustness"]["groups"]["Domain Sketch"]
    assert sketch["baseline"] == ["9.27", "17.33", "22.50", "0.04", "0.58"]


def test_an_unknown_heading_is_named():
    with pytest.raises(ConfigError, match="no heading 'Domain Scetch'; did you mean `Domain Sk"):
        printed_rows("tab:robustness", "Domain Scetch")
    assert printed_rows("fig:teaser", "x") is None


def test_the_list_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OFFRAMP_DATA", str(tmp_path))
    (tmp_path / "cifar100").mkdir()
    studies([])
    listed = capsys.readouterr().out
    assert all(f"{name}\n" in listed for name in NAMES)
    assert "\n    small: shipped ledgers (available)\n" in listed
    assert "\n    paper: tiny-imagenet, resnet34 (missing: tiny-imagenet)\n" in listed
    assert "\n    small: cifar100, thin-resnet (available)\n" in listed
    assert "(missing: cifar100-lite0/ledgers, msdnet/ledgers" in listed


def test_an_experiment_runs_by_name(shipped, tmp_path, capsys):
    quick = ["--seeds", "1", "--resamples", "20", "--out", str(tmp_path)]
    study(["efficientnet-b2-imagenet", *quick])
    printed = capsys.readouterr()
    for words in ("Paper and measured here", "34.50 ± 0.04", f"report: {tmp_path}/report.html"):
        assert words in printed.out
    assert "A stand-in for ImageNet is missing at this scale" in printed.err
    page = (tmp_path / "report.html").read_text()
    for words in ("small scale", "tab:additional_results_with_stds", "A stand-in for ImageNet"):
        assert words in page
    assert "offramp study efficientnet-b2-imagenet --seeds 1" in page


def test_without_the_shipped_ledgers_the_error_is_theirs(tmp_path, monkeypatch):
    def missing():
        raise FileFormatError("the shipped network `cifar100` is not installed")

    monkeypatch.setattr("offramp.zoo.cifar100", missing)
    with pytest.raises(FileFormatError, match="is not installed"):
        study(["topk-ablation", "--out", str(tmp_path)])


def offramp(*arguments, before="", cwd=None):
    """The command line in a process of its own, which says at its end whether torch was read."""
    code = (
        "import sys, runpy, atexit\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        f"{before}\nsys.argv = ['offramp', *{list(arguments)}]\n"
        "runpy.run_module('offramp', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_command_line_knows_experiments_and_answers_without_torch(tmp_path):
    found = offramp("study", "topk", cwd=tmp_path)
    assert found.returncode == 2
    assert "there is no study `topk`; did you mean `topk-ablation`?" in found.stderr
    assert found.stdout.strip() == "False"


def test_where_the_package_is_not_installed_its_commands_say_what_to_install(tmp_path):
    without = "import offramp.registry; offramp.registry.entry_points = lambda **_: ()"
    found = offramp("study", "topk-ablation", "--scale", "paper", before=without, cwd=tmp_path)
    assert found.returncode == 2
    message = "offramp: offramp study comes with the package offramp-paper: pip install offramp-"
    assert found.stderr.startswith(message)
    assert found.stdout.strip() == "False"
