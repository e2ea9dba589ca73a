"""What the documentation site needs beyond mkdocs' own settings; mkdocs.yml names this file.

The pages below docs/ are plain Markdown with relative links, so that they read the same in the
repository. Four things differ on the site: links to files elsewhere in the repository are plain
text, the commands have a page that is made from their `--help`, the logo is that of the report,
and an `Example:` in a docstring is shown as code.
"""

import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from offramp.cli.app import app

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the commands, and the logo."""
    files.append(File.generated(config, "cli.md", content=command_page()))
    logo = (ROOT / "src" / "offramp" / "report" / "page_template" / "logo.svg").read_text()
    files.append(File.generated(config, "assets/logo.svg", content=logo))
    return files


def command_page() -> str:
    """Every command with its arguments and options, as its `--help` has them."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    sections = [command_section(name, command) for name, command in commands.items()]
    intro = "Made from the commands' `--help`. Every command takes `--help`."
    return "\n\n".join(["# Command line", intro, *sections])


def command_section(name: str, command: Any) -> str:  # noqa: ANN401 - typer has no public type
    """One command as Markdown.

    Example:
        >>> from typing import Annotated
        >>> def fit(budget: Annotated[float, typer.Option(help="Mean cost [share].")] = 0.5):
        ...     "Fit it."
        >>> one = typer.Typer(add_completion=False)
        >>> _ = one.command()(fit)
        >>> print(command_section("fit", typer.main.get_command(one)))
        ## `offramp fit`
        <BLANKLINE>
        Fit it.
        <BLANKLINE>
        | option | meaning |
        |---|---|
        | `--budget FLOAT` | Mean cost [share]. Default: 0.5. |
    """
    rows = [option_row(parameter) for parameter in command.params]
    table = ["| option | meaning |", "|---|---|", *rows] if rows else []
    parts = f"## `offramp {name}`", inspect.cleandoc(command.help or ""), "\n".join(table)
    return "\n\n".join(part for part in parts if part)


def option_row(parameter: Any) -> str:  # noqa: ANN401
    """An option or an argument of a command, as a row."""
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        kind = "" if parameter.is_flag else f" {value_name(parameter)}"
        names = ", ".join(f"`{each}{kind}`" for each in parameter.opts)
    text = " ".join((parameter.help or "").split()).replace("\\[", "[").replace("|", "\\|")
    if isinstance(parameter.default, int | float | str) and "efault:" not in text:
        text += "" if isinstance(parameter.default, bool) else f" Default: {parameter.default}."
    return f"| {names} | {text} |"


def value_name(option: Any) -> str:  # noqa: ANN401
    """What an option takes, in a word."""
    kind = getattr(option, "type_descriptor", None)
    return str(option.metavar or getattr(kind and kind.annotation, "__name__", "value")).upper()


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/ are plain text: no file is there."""
    return re.sub(
        r"\[([^\]]*)\]\((\.\./[^)#]*)\)",
        lambda link: linked(link[1], link[2], page.file.src_uri),
        markdown,
    )


def linked(text: str, target: str, page: str) -> str:
    """A link from one page of docs/ as it is on the site.

    Example:
        >>> linked("the tests", "../../tests/test_docs.py", "guides/deploy.md")
        'the tests'
        >>> linked("data", "../reference/data.md", "guides/only-logits.md")
        '[data](../reference/data.md)'
    """
    place = posixpath.normpath(posixpath.join(posixpath.dirname(page) or ".", target))
    return text if place.startswith("../") else f"[{text}]({target})"


class OneExample(griffe.Extension):
    """Read `Example:` as griffe reads `Examples:`, so that it is shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
