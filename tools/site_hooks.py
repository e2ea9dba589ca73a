"""What the documentation site needs beyond mkdocs' own settings; mkdocs.yml names this file.

The pages below docs/ are plain Markdown with relative links, so that they read the same in the
repository. Five things differ on the site: the navigation may say `FOLDER/*.md`, the files of
examples/, the changelog and the paper's README are pages, the commands have a page that is made
from their `--help`, the logo is that of the report, and an `Example:` in a docstring is shown as
code.
"""

import base64
import inspect
import json
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
    """Add the pages that are made from other files of the repository; fill in the navigation."""
    for script in sorted((ROOT / "examples").glob("*.py")):
        text = f"# {script.name}\n\n```python\n{script.read_text()}```\n"
        files.append(File.generated(config, f"examples/{script.stem}.md", content=text))
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        text = notebook_page(json.loads(notebook.read_text()))
        files.append(File.generated(config, f"examples/{notebook.stem}.md", content=text))
    changes = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changes))
    paper = (ROOT / "paper" / "README.md").read_text().replace("](../docs/", "](")
    paper = paper.replace("](../README.md)", "](index.md)")
    files.append(File.generated(config, "paper.md", content=paper))
    files.append(File.generated(config, "cli.md", content=command_page()))
    logo = (ROOT / "src" / "offramp" / "report" / "page_template" / "logo.svg").read_text()
    files.append(File.generated(config, "assets/logo.svg", content=logo))
    named = json.dumps(config.nav)  # a page that has a place of its own is not listed again
    pages = {file.src_uri: menu_title(file) for file in files.documentation_pages()}
    config.nav = expanded(config.nav, {k: v for k, v in pages.items() if f'"{k}"' not in named})
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


def notebook_page(notebook: dict[str, Any]) -> str:
    r"""A notebook with its outputs as Markdown.

    Example:
        >>> printed = {"output_type": "stream", "text": ["4\n"]}
        >>> cells = [
        ...     {"cell_type": "markdown", "source": ["See [how](../docs/how-to/index.md)."]},
        ...     {"cell_type": "code", "source": ["print(2 + 2)"], "outputs": [printed]},
        ... ]
        >>> print(notebook_page({"cells": cells}))
        See [how](../how-to/index.md).
        <BLANKLINE>
        ```python
        print(2 + 2)
        ```
        <BLANKLINE>
        ```text
        4
        ```
    """
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "](../"))
        else:
            outputs = [shown(output) for output in cell["outputs"]]
            parts += [f"```python\n{source}\n```", *outputs]
    return "\n\n".join(parts)


def shown(output: dict[str, Any]) -> str:
    """One output of a cell: a table, a picture inside of the page, or text."""
    data = output.get("data", {"text/plain": output.get("text", [])})
    content = {kind: "".join(lines) for kind, lines in data.items()}
    if "text/markdown" in content:
        return content["text/markdown"]
    if "image/png" in content:
        return f"![Output](data:image/png;base64,{content['image/png'].replace(chr(10), '')})"
    if "image/svg+xml" in content:
        packed = base64.b64encode(content["image/svg+xml"].encode()).decode()
        return f"![Output](data:image/svg+xml;base64,{packed})"
    return f"```text\n{content['text/plain'].rstrip()}\n```"


def menu_title(file: File) -> str:
    """The heading of a page, without what its place in the menu says already."""
    heading = re.search(r"^# (.*)", file.content_string, flags=re.MULTILINE)
    title = heading[1] if heading else file.name
    return re.sub(r"^Beyond the paper: |,? small scale$", "", title, flags=re.IGNORECASE)


def expanded(nav: Any, pages: dict[str, str]) -> Any:  # noqa: ANN401
    """A navigation with every `FOLDER/*.md` replaced by its pages; a section without any goes.

    Example:
        >>> nav = [{"Home": "index.md"}, {"More": ["more/*.md", "c.md"]}, {"None": "none/*.md"}]
        >>> expanded(nav, {"more/b.md": "B", "more/a.md": "A", "more/index.md": "More"})[1]
        {'More': ['more/index.md', {'A': 'more/a.md'}, {'B': 'more/b.md'}, 'c.md']}
    """
    if isinstance(nav, list):
        parts = (expanded(item, pages) for item in nav)
        return [
            page for part in parts for page in (part if isinstance(part, list) else [part]) if page
        ]
    if isinstance(nav, dict):
        return {title: found for title, item in nav.items() if (found := expanded(item, pages))}
    if not nav.endswith("/*.md"):
        return nav
    folder = nav.removesuffix("/*.md")
    inside = sorted(page for page in pages if posixpath.dirname(page) == folder)
    index = f"{folder}/index.md"
    titled = [{pages[page]: page} for page in inside if page != index]
    return [index, *titled] if index in inside else titled


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/ lead to a page made above, or are plain text: no file is there."""
    return re.sub(
        r"\[([^\]]*)\]\((\.\./[^)#]*)\)",
        lambda link: linked(link[1], link[2], page.file.src_uri),
        markdown,
    )


def linked(text: str, target: str, page: str) -> str:
    """A link from one page of docs/ as it is on the site.

    Example:
        >>> linked("the script", "../../examples/engineer.py", "stories/engineer.md")
        '[the script](../examples/engineer.md)'
        >>> linked("the tests", "../tests/test_docs.py", "design.md")
        'the tests'
        >>> linked("data", "../data.md", "how-to/only-logits.md")
        '[data](../data.md)'
    """
    folder = posixpath.dirname(page) or "."
    place = posixpath.normpath(posixpath.join(folder, target))
    if not place.startswith("../"):
        return f"[{text}]({target})"
    found = re.fullmatch(
        r"\.\./examples/(\w+)\.(?:py|ipynb)|\.\./(CHANGELOG|paper/README)\.md", place
    )
    if found is None:
        return text
    pages = {"CHANGELOG": "changelog.md", "paper/README": "paper.md"}
    made = f"examples/{found[1]}.md" if found[1] else pages[found[2]]
    return f"[{text}]({posixpath.relpath(made, folder)})"


class OneExample(griffe.Extension):
    """Read `Example:` as griffe reads `Examples:`, so that it is shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
