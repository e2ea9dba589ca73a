"""The command line as a user runs it: its output and its exit code.

A real process is tried where it makes a difference. All else is tried in this one, from the same
`main`: starting Python and torch takes longer than all the rest.
"""

import contextlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from offramp import Policy, synthetic
from offramp.cli.app import app, main


def offramp(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "offramp", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
        timeout=300,
        check=False,
    )


@pytest.fixture
def here(monkeypatch):
    """Runs a command in this process, and leaves nothing of it behind."""
    interrupt, show = signal.getsignal(signal.SIGINT), warnings.showwarning
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["offramp", *map(str, arguments)])
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        return SimpleNamespace(
            returncode=ended.value.code or 0, stdout=out.getvalue(), stderr=err.getvalue()
        )

    yield run
    signal.signal(signal.SIGINT, interrupt)
    warnings.showwarning = show


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("ledgers")
    for split, ledger in synthetic.ledgers(seed=0, samples=300, exits=4, classes=8).items():
        ledger.save(root / split)
    return root


@pytest.fixture(scope="module")
def one_file(folder, tmp_path_factory):
    ledger = synthetic.ledgers(seed=0, samples=300, exits=4, classes=8)["test"]
    path = tmp_path_factory.mktemp("npz") / "mine.npz"
    np.savez(path, logits=ledger.logits, labels=ledger.labels, costs=ledger.costs)
    return path


def assert_refused(result, *words):
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("offramp: ")]
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]


def test_compare_prints_the_table_and_writes_every_form(here, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = here("compare", folder, "--methods", "baseline,temperature")
    assert result.returncode == 0, result.stderr
    assert "Temperature scaling" in result.stdout
    assert "Oracle" in result.stdout
    out = tmp_path / f"{folder.name}-comparison"
    for name in ("comparison.md", "comparison.json", "comparison.csv"):
        assert (out / name).is_file()
    figures = json.loads((out / "comparison.json").read_text())["methods"][0]["figures"]
    assert f"{100 * figures['accuracy@0.5']['value']:.2f}" in result.stdout


def test_compare_takes_one_npz_and_says_that_it_cut_it(here, one_file, tmp_path):
    result = here("compare", one_file, "--methods", "baseline", "--out", tmp_path / "o")
    assert result.returncode == 0, result.stderr
    assert "split at random (seed 0) into 90 held_out, 90 val, 120 test" in result.stderr


def test_fit_saves_a_policy_that_meets_the_budget(here, folder, tmp_path):
    out = tmp_path / "policy"
    result = here("fit", folder, "--budget", 0.5, "--method", "baseline", "--out", out)
    assert result.returncode == 0, result.stderr
    assert "on test, with smooth thresholds: accuracy" in result.stdout
    policy = Policy.load(out)
    assert policy.points.budgets[policy.selected] <= 0.5


def test_fit_and_compare_agree_on_the_same_thresholds_and_say_where_they_do_not(
    here, folder, tmp_path
):
    methods = "baseline,margin,margin:smooth"
    compared = here("compare", folder, "--methods", methods, "--out", tmp_path / "o", "--json")
    fitted = here(
        "fit", folder, "--method", "margin", "--budget", 0.5, "--out", tmp_path / "p", "--json"
    )
    assert "calls this policy margin:smooth; it takes the paper's geometric" in fitted.stderr
    tables = json.loads(compared.stdout)["tables"]
    assert "`offramp fit` and `Policy.tune` choose smooth ones" in tables[1]["caption"]
    methods = json.loads((tmp_path / "o" / "comparison.json").read_text())["methods"]
    geometric, smooth = ({**method["curves"][0]} for method in methods[1:])
    found = json.loads(fitted.stdout)["test"]
    point = (found["mean_cost"], found["accuracy"])
    points = np.array([smooth["costs"], smooth["accuracies"]]).T  # [P, 2]
    assert np.isclose(points, point).all(axis=1).any()
    assert geometric["accuracies"] != smooth["accuracies"]
    assert "margin:smooth, made" in here("inspect", tmp_path / "p").stdout


def test_a_guarantee_takes_the_thresholds_that_the_method_names(here, folder, tmp_path):
    wanted = ("certify", folder, "--epsilon", 0.6, "--method", "margin:smooth")
    found = here(*wanted, "--loss", "recall", "--class", 2, "--out", tmp_path / "p")
    assert found.returncode == 0, found.stderr
    assert "share of class 2 that is answered otherwise at most 0.6" in found.stdout
    assert_refused(
        here(*wanted, "--loss", "recall", "--force"), "`class_` is the number of a class"
    )


def test_fit_takes_an_accuracy_and_needs_no_test_ledger(here, folder, tmp_path):
    for split in ("held_out", "val"):
        (tmp_path / split).symlink_to(folder / split)
    result = here(
        "fit", tmp_path, "--max-drop", 0.05, "--method", "baseline", "--out", tmp_path / "p"
    )
    assert result.returncode == 0, result.stderr
    assert "on test" not in result.stdout
    assert Policy.load(tmp_path / "p").selected is not None


def test_fit_does_without_labels_and_says_what_is_lost(here, tmp_path):
    val = synthetic.ledgers(seed=0, samples=400, exits=4)["val"]
    path, out = tmp_path / "new-camera.npz", tmp_path / "policy"
    np.savez(path, logits=val.logits, costs=val.costs)
    fit = ("fit", path, "--out", out)
    assert_refused(here(*fit, "--budget", 0.5), "Corrector learns from labels")
    method = ("--method", "break-even-no-ensemble")
    assert_refused(here(*fit, *method, "--max-drop", 0.01), "val had no labels")
    result = here(*fit, *method, "--budget", 0.5)
    assert result.returncode == 0, result.stderr
    assert "val has no labels: the accuracy of the operating points is unknown" in " ".join(
        result.stderr.split()
    )
    assert "accuracy that is not known" in " ".join(result.stdout.split())
    assert "unknown" in here("inspect", path).stdout
    assert_refused(here("compare", path), "no labels")


def test_inspect_describes_ledgers_and_policies(here, folder, one_file, tmp_path):
    result = here("inspect", folder)
    assert result.returncode == 0
    assert result.stdout.count("held_out") >= 1
    assert "300" in result.stdout
    assert "hopeless" in result.stdout
    fit = ("fit", folder, "--budget", 0.5, "--method", "temperature", "--out", tmp_path / "p")
    here(*fit)
    made = Policy.load(tmp_path / "p").made
    assert (made.name, made.data) == ("temperature:smooth", str(folder))
    assert_refused(here(*fit), "there is a policy in", "already: give --force to replace it")
    assert here(*fit, "--force").returncode == 0
    result = here("inspect", tmp_path / "p")
    assert f"made {made.date[:10]} with offramp {made.version}" in " ".join(result.stdout.split())
    assert "TemperatureScaling" in result.stdout
    assert "fit on 300 of held_out, tune on 300 of val" in result.stdout
    result = here("inspect", one_file)
    assert "relative" in result.stdout
    path = tmp_path / "p" / "policy.json"
    path.write_text(path.read_text().replace('"name": "temperature:smooth"', '"name": "mine"'))
    assert_refused(here("inspect", tmp_path / "p"), "was changed after it was written")
    result = here("inspect", tmp_path / "p", "--accept")
    assert result.returncode == 0 and "accepted" in result.stderr
    assert here("inspect", tmp_path / "p").returncode == 0


def answers_of_models(folder, right="4", **change):
    """JSON lines of two models, of which the second is more often right."""
    rng, rows = np.random.default_rng(0), []
    for sure in rng.random(300):
        answers = [right if sure > 0.3 else "5", right if sure > 0.1 else "6"]
        row = {"answers": answers, "confidence": [0.3 + 0.7 * sure, 0.95], "label": "4"}
        rows.append({**row, "model_costs": [0.1, 1.0], "unit": "dollars", **change})
    path = folder / "decisions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path, rows


def test_auto_and_inspect_speak_of_the_models_of_a_cascade(here, tmp_path):
    path, _ = answers_of_models(tmp_path)
    result = here("auto", path, "--out", tmp_path / "p")
    assert result.returncode == 0, result.stderr
    text = " ".join((result.stdout + here("inspect", path).stdout).split())
    assert "; models [0, 1]" in text and "of the last model alone" in text
    assert "cost of the last model alone 1 " in text and "model by model" in text
    assert "exit" not in text and "full network" not in text


def test_auto_refuses_what_gives_nothing_to_choose_by(here, tmp_path):
    path, rows = answers_of_models(tmp_path)
    auto = ("auto", path, "--out", tmp_path / "p")
    bare = [{key: row[key] for key in row if key != "label"} for row in rows]
    path.write_text("\n".join(map(json.dumps, bare)))
    assert_refused(here(*auto), f"{path} has none", "right answer, in a column `label`")
    path.write_text("\n".join(map(json.dumps, [*rows, *bare])))
    row = "row 301 lacks label, which other rows have; give it the right answer, or remove the"
    assert_refused(here(*auto), row)
    answers_of_models(tmp_path, right=4)
    assert_refused(here(*auto), f"no answer in {path} is ever right, so there is nothing to")
    assert not (tmp_path / "p").exists()


def test_fit_takes_auto_as_any_method(here, folder, tmp_path):
    result = here("fit", folder, "--budget", 0.5, "--method", "auto", "--out", tmp_path / "p")
    assert result.returncode == 0, result.stderr
    assert "on test: accuracy" in result.stdout


def test_wrong_paths_and_settings_give_one_clear_line(here, folder, tmp_path):
    assert_refused(here("compare", tmp_path / "nowhere"), "nothing at")
    assert_refused(here("compare", tmp_path), "lacks held_out/ or held_out.npz")
    assert_refused(here("compare", folder.parent), f"did you mean {folder}?")
    assert_refused(here("fit", f"{folder}x", "--budget", 0.5), f"did you mean {folder}?")
    assert_refused(here("fit", folder, "--budget", 50), "for 50 % say 0.5")
    assert_refused(here("inspect", tmp_path), "holds no ledger, policy or network")
    assert_refused(
        here("compare", folder, "--methods", "temprature"), "did you mean `temperature`"
    )
    assert_refused(here("compare", folder, "--budgets", "half"), "comma-separated numbers")
    assert_refused(here("compare", folder, "--budgets", "2"), "share", "in (0, 1], got 2")
    assert_refused(here("fit", folder), "either --budget or --max-drop")
    assert_refused(
        here("fit", folder, "--budget", 0.5, "--method", "extended"),
        "'extended' is a group of them, for `offramp compare`",
    )
    assert_refused(here("compare", folder / "val"), "of the split 'val'; give the folder")
    assert_refused(
        here("fit", folder, "--budget", 0.01, "--method", "baseline", "--out", tmp_path / "p"),
        "must lie in [0.25",
    )
    assert not (tmp_path / "p").exists()


def test_broken_files_give_one_clear_line(here, tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"nonsense")
    assert_refused(here("compare", bad), "is not a complete .npz file: it is truncated")
    np.savez(bad, logits=np.full((9, 2, 3), np.nan), labels=np.zeros(9, int), costs=[1.0, 2.0])
    assert_refused(here("inspect", bad), "sample 0, exit 0")
    (tmp_path / "comparison.json").write_text("{}")
    assert_refused(here("inspect", tmp_path), "is a comparison", "its page is report.html")


def test_a_real_process_refuses_alike(tmp_path):
    assert_refused(offramp("compare", tmp_path / "nowhere"), "nothing at")


def test_a_folder_that_cannot_be_written_gives_one_clear_line(here, folder, tmp_path):
    (tmp_path / "file").write_text("")
    assert_refused(
        here("compare", folder, "--methods", "baseline", "--out", tmp_path / "file" / "x"),
        "file is a file, not a folder",
    )
    assert_refused(
        here("fit", folder, "--budget", 0.5, "--out", folder / "val"), "it holds a ledger"
    )


def test_a_policy_is_not_put_among_other_files(here, folder, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    # Before any work: what is no ledger was not looked at.
    fit = ("fit", tmp_path / "notes.txt", "--budget", 0.5, "--method", "baseline", "--out")
    assert_refused(here(*fit, tmp_path), "it holds other things (notes.txt) and no policy")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_ctrl_c_says_that_nothing_is_broken(folder, tmp_path):
    command = [sys.executable, "-m", "offramp", "compare", str(folder), "--methods", "extended"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "o")], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr.read(1)  # the progress bar, or a note: it is at work
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes:\n  offramp compare" in rest


def test_help_teaches(here):
    assert here("--version").stdout.strip()
    front = here("--help").stdout
    for command in ("compare", "fit", "inspect", "demo"):
        assert command in front
    page = here("compare", "--help").stdout
    assert page == here("compare", "-h").stdout
    assert "Usage: offramp compare [OPTIONS] {PATH}" in page
    assert "cumulative costs" in page
    assert "standard" in page


def test_unknown_options_are_refused(here, folder):
    assert here("compare", folder, "--bugdets", "0.5").returncode == 2


def test_certify_saves_a_policy_with_its_guarantee(here, folder, tmp_path):
    wanted = ("certify", folder, "--method", "baseline", "--out", tmp_path / "p")
    assert_refused(here(*wanted), "give --epsilon, --budget or both")
    assert_refused(here(*wanted, "--epsilon", 1e-9), "smallest epsilon that could be certified")
    assert not (tmp_path / "p").exists()
    found = here(*wanted, "--epsilon", 0.4)
    assert found.returncode == 0, found.stderr
    assert "mean loss of accuracy at most 0.4, with confidence 0.9" in found.stdout
    assert Policy.load(tmp_path / "p").guarantee in " ".join(found.stdout.split())
    assert_refused(here(*wanted[:3], "auto", "--epsilon", 0.4), "'auto' is several")


def test_certify_takes_answers_of_which_each_way_to_stop_has_its_guarantee(here, tmp_path):
    rows = [
        {
            "confidence": [0.2 + 0.6 * (n % 3 == 0), 0.9],
            "correct": [n % 3 == 0, n % 5 > 0],
            "costs": [10 + n % 7, 50 + n % 9],
            "unit": "tokens",
            "id": n,
        }
        for n in range(300)
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    wanted = ("certify", path, "--method", "baseline", "--out", tmp_path / "p")
    found = here(*wanted, "--epsilon", 0.2, "--loss", "regret-hopeless")
    assert found.returncode == 0, found.stderr
    assert "mean regret where it gave up as hopeless at most 0.2" in found.stdout
    assert_refused(here(*wanted, "--budget", 0.9, "--force"), "--largest-cost, in tokens")
    found = here(*wanted, "--budget", 0.9, "--largest-cost", 100, "--force")
    assert "mean cost at most 0.9" in found.stdout, found.stderr


def test_the_cut_of_a_single_file_can_be_chosen(here, tmp_path):
    ledger = synthetic.ledgers(seed=0, samples=200)["val"].as_split("all")
    ledger.save(tmp_path / "one")
    fit = ("fit", tmp_path / "one", "--budget", 0.6, "--method", "baseline", "--out")
    chosen = ("--shares", "0.2,0.3,0.5", "--split-seed", 7, "--stratify")
    found = here(*fit, tmp_path / "p", *chosen)
    assert found.returncode == 0, found.stderr
    assert "(seed 7) into" in found.stderr
    parts = ledger.partition(0.2, 0.3, 0.5, seed=7, stratify=True)
    assert Policy.load(tmp_path / "p").uses[0].data_fingerprint == parts.held_out.data_fingerprint
    assert_refused(here(*fit, tmp_path / "q", "--shares", "0.5,0.6,0.1"), "sum to one")


def test_a_folder_of_splits_is_not_cut(here, folder, tmp_path):
    fit = ("fit", folder, "--budget", 0.6, "--out", tmp_path / "p", "--split-seed", 1)
    assert_refused(here(*fit), "has its splits already")


def test_every_command_takes_json_quiet_and_verbose(here, folder, tmp_path):
    fit = ("fit", folder, "--budget", 0.6, "--method", "baseline", "--out", tmp_path / "p")
    found = here(*fit, "--json", "--quiet")
    content = json.loads(found.stdout)
    assert found.stderr == ""
    assert content["policy"] == str(tmp_path / "p")
    assert 0 < content["test"]["mean_cost"] <= 0.7
    found = here("inspect", tmp_path / "p", "--json", "--verbose")
    tables = json.loads(found.stdout)["tables"]
    assert tables[0]["facts"]["scorer"] == "MaxProbability()"
    assert "reading a policy from" in found.stderr
    refused = here(*fit[:2], "--budget", 0.01, *fit[4:-1], tmp_path / "q", "--json", "--quiet")
    assert_refused(refused, "must lie in")
    assert refused.stdout == ""
    for each in app.registered_commands:
        assert {"as_json", "quiet", "verbose"} <= set(inspect.signature(each.callback).parameters)


def test_methods_are_listed_with_what_their_letters_stand_for():
    listed = CliRunner().invoke(app, ["methods"])
    assert listed.exit_code == 0
    for text in ("eefp-no-history", "break-even", "Temperature", "standard: baseline"):
        assert text in listed.stdout
    helps = {
        name: " ".join(CliRunner().invoke(app, [name, "--help"]).stdout.replace("│", "").split())
        for name in ("methods", "fit", "compare")
    }
    for text in ("early-exit failure prediction", "confidence corrector with confidence target"):
        assert text in helps["methods"]
    for name in ("fit", "compare"):
        assert "eefp-class-ensemble" not in helps[name] and "offramp methods" in helps[name]
