"""What the documentation site needs beyond mkdocs' own settings; mkdocs.yml names this file.

The pages below docs/ are plain Markdown with relative links, so that they read the same in the
repository. Three things differ on the site: the navigation may say `FOLDER/*.md`, the scripts of
examples/ and the changelog are pages, and an `Example:` in a docstring is shown as code.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files of the repository; fill in the navigation."""
    for script in sorted((ROOT / "examples").glob("*.py")):
        text = f"# {script.name}\n\n```python\n{script.read_text()}```\n"
        files.append(File.generated(config, f"examples/{script.stem}.md", content=text))
    changes = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changes))
    config.nav = expanded(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def expanded(nav: Any, pages: list[str]) -> Any:  # noqa: ANN401
    """A navigation with every `FOLDER/*.md` replaced by its pages; a section without any goes.

    Example:
        >>> nav = [{"Home": "index.md"}, {"More": ["more/*.md", "c.md"]}, {"None": "none/*.md"}]
        >>> expanded(nav, ["more/b.md", "more/a.md", "more/index.md", "index.md", "c.md"])
        [{'Home': 'index.md'}, {'More': ['more/index.md', 'more/a.md', 'more/b.md', 'c.md']}]
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
    inside = [page for page in pages if posixpath.dirname(page) == folder]
    return sorted(inside, key=lambda page: (posixpath.basename(page) != "index.md", page))


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
    found = re.fullmatch(r"\.\./examples/(\w+)\.py|\.\./(CHANGELOG)\.md", place)
    if found is None:
        return text
    made = f"examples/{found[1]}.md" if found[1] else "changelog.md"
    return f"[{text}]({posixpath.relpath(made, folder)})"


class OneExample(griffe.Extension):
    """Read `Example:` as griffe reads `Examples:`, so that it is shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
