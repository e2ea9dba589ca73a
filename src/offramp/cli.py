"""The command line: one sub-command = parse + one public call."""

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from offramp import __version__, report
from offramp.advice import AUTO, contestants
from offramp.cli_advise import advise_command
from offramp.cli_doctor import doctor_command, welcome
from offramp.cli_flow import demo_command, run_command, studies_command, study_command
from offramp.cli_options import LedgersPath, note_partition, numbers
from offramp.cli_report import report_command
from offramp.cli_runtime import bench_command, predict_command
from offramp.cli_serving import export_command, serve_command
from offramp.cli_theory import theory_command
from offramp.cli_training import record_command, train_command
from offramp.errors import ConfigError, OfframpError, OriginWarning
from offramp.evaluation import Comparison, compare, evaluate
from offramp.evaluation.comparison import Progress as Report
from offramp.ledger_files import has_ledger, load_ledgers
from offramp.methods import GROUPS, METHODS, find_methods, plugin_method, ready
from offramp.plugins import plugin_origins
from offramp.storage import check_fresh, check_target

__all__ = ["app", "main"]

app = typer.Typer(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Early-exit neural networks: decide when to stop, for a compute budget.\n\n"
    "Start with `offramp demo`, or give your own per-exit logits to `offramp compare`. "
    "`offramp doctor` says what is installed and what is missing, and "
    "`offramp --install-completion` completes names with the Tab key.",
)
# Where the output goes to a file, tables need not fold to the width of a terminal.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True, width=None if sys.stderr.isatty() else 140)

_methods = (
    f"Methods: {', '.join(METHODS)}; or one of an installed package (offramp doctor lists them)."
)
_known = f"Groups: {', '.join(GROUPS)}. {_methods}"


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="NAME",
            help="Import this method of an installed package first, so that policies with its "
            "scorer or answer can be read.",
        ),
    ] = None,
) -> None:
    if version:
        out.print(__version__, highlight=False)
        raise typer.Exit
    for name in plugins or ():
        if plugin_method(name) is None:
            known = ", ".join(plugin_origins()) or "none"
            raise ConfigError(f"--plugin: no installed package has a method {name!r}; {known}")
    if context.invoked_subcommand is None:
        welcome()


@app.command("compare")
def compare_command(
    path: LedgersPath,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated methods or groups, or `auto`, the choice of `advise`. " + _known
        ),
    ] = "standard",
    budgets: Annotated[
        str, typer.Option(help="Comma-separated mean costs, as shares of the full network.")
    ] = "0.25,0.5,0.75",
    seeds: Annotated[int, typer.Option(help="Seeds for methods whose fit is random.")] = 3,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples for intervals.")] = 1000,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write. Default: NAME-comparison in this folder."),
    ] = None,
) -> None:
    """Compare exit methods on saved per-exit logits, and print the table.

    Every method is fitted on held_out, gets its thresholds on val and its figures on test.
    Tables are also written as Markdown, CSV, LaTeX and JSON, with a figure as SVG and an
    interactive page, report.html.
    """
    folder = folder or Path(f"{path.resolve().name.removesuffix('.npz')}-comparison")
    check_target(folder)
    wanted = [name.strip() for name in methods.split(",") if name.strip()]
    shares = numbers("--budgets", budgets)
    ledgers = load_ledgers(path)
    with _progress() as progress:
        result = compare(
            ledgers["held_out"],
            ledgers["val"],
            ledgers["test"],
            contestants(wanted),
            shares,
            seeds,
            resamples,
            progress,
        )
    note_partition(path, ledgers)
    _show(result, folder, {"command": shlex.join(["offramp", *sys.argv[1:]])})


@app.command("fit")
def fit_command(
    path: LedgersPath,
    budget: Annotated[
        float | None, typer.Option(help="Mean cost, as a share of the full network.")
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Instead: accuracy that may be lost, 0.01 for a point.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="Thresholds are optimised, unless the name says otherwise, as in ours:geometric. "
            + _methods
        ),
    ] = "ours",
    folder: Annotated[Path, typer.Option("--out", help="Where to save it.")] = Path("policy"),
) -> None:
    """Fit a policy, choose its operating point for a budget, and save it.

    The answer and the scorer are fitted on held_out, the thresholds come from val. Where there is
    a test ledger, the outcome on it is printed.
    """
    if (budget is None) == (max_drop is None):
        raise ConfigError("give either --budget or --max-drop")
    if method == AUTO:
        raise ConfigError(
            "--method takes one method by name; to have one chosen, fitted and saved for every "
            f"budget: offramp advise {path} --out FOLDER"
        )
    if method in GROUPS:
        raise ConfigError(
            f"--method takes one method, and {method!r} is a group of them: "
            f"{', '.join(GROUPS[method])}"
        )
    check_fresh(folder, "policy")
    has_test = has_ledger(path, "test")
    ledgers = load_ledgers(path, ("held_out", "val", "test")[: 3 if has_test else 2])
    note_partition(path, ledgers)
    chosen = ready(*find_methods([method], ledgers["val"].num_classes))
    with err.status(f"fitting {chosen.label}"):
        policy = chosen.policy().fit(ledgers["held_out"]).tune(ledgers["val"], chosen.thresholds)
        policy = policy.at(budget=budget, max_drop=max_drop)
    policy.save(folder)
    if has_test:
        out.print(f"on test: {evaluate(policy, ledgers['test'])}", markup=False, highlight=False)
    for table in report.inspect(folder):
        out.print(table.rich())


@app.command("inspect")
def inspect_command(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Ledger, .npz, policy, network or folder.")
    ],
) -> None:
    """Describe any ledger, policy or network: sizes, costs, accuracy per exit, origin."""
    for table in report.inspect(path):
        out.print(table.rich())


app.command("advise")(advise_command)
app.command("train")(train_command)
app.command("record")(record_command)
app.command("export")(export_command)
app.command("serve")(serve_command)
app.command("predict")(predict_command)
app.command("bench")(bench_command)
app.command("report")(report_command)
app.command("theory")(theory_command)
app.command("run")(run_command)
app.command("studies")(studies_command)
app.command("study")(study_command)
app.command("demo")(demo_command)
app.command("doctor")(doctor_command)


def main() -> None:
    """Run the command line; what a user did wrong becomes one line and exit code 2."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    # typer would turn Ctrl-C into a silent exit.
    signal.signal(signal.SIGINT, _interrupted)
    try:
        app()
    except (OfframpError, OSError) as error:
        err.print(f"offramp: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


def _interrupted(*_: object) -> None:
    # Straight to the descriptor: the signal may arrive in the middle of a write to stderr, and
    # Python's streams refuse a second write from there.
    text = "offramp: interrupted; every file that was written is whole, run it again for the rest"
    os.write(2, f"\n{text}\n".encode())
    sys.exit(130)


def _show(result: Comparison, folder: Path, provenance: Mapping[str, Any] | None = None) -> None:
    # First: printing may be cut off.
    paths, missing = report.write_comparison(result, folder, provenance)
    for table in report.tables(result):
        out.print(table.rich())
    for sentence in report.verdicts(result):
        out.print(sentence, highlight=False)
    out.print(f"written to {folder}/: {', '.join(p.name for p in paths)}", highlight=False)
    if missing is not None:
        err.print(f"note: {missing}", markup=False, highlight=False)


@contextmanager
def _progress() -> Iterator[Report]:
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def update(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield update


_noted: set[str] = set()


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Each warning once, as one line."""
    text = str(message)
    if issubclass(category, OriginWarning):
        text = (
            "the ledgers do not say which network made them, so a mix-up would go unnoticed; an "
            ".npz names it in an array `network`, any text"
        )
    if text not in _noted:
        _noted.add(text)
        err.print(f"note: {text}", markup=False, highlight=False)
