"""The documentation site: it builds without a warning, and opens without a request elsewhere."""

import functools
import http.server
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
import typer

from offramp.cli.app import app

ROOT = Path(__file__).parents[1]
ROOMS = (
    "answers",
    "data",
    "evaluation",
    "networks",
    "runtime",
    "scorers",
    "thresholds",
    "training",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a broken link or an unknown name is an error."""
    folder = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture(scope="module")
def documented(site):
    """Every name of the API reference, from the inventory that other sites link by."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_every_public_function_and_class_is_in_the_reference(documented, room):
    module = importlib.import_module(f"offramp.{room}".rstrip("."))
    public = {name: getattr(module, name) for name in module.__all__}
    paths = {
        f"{item.__module__}.{item.__name__}"
        for item in public.values()
        if inspect.isclass(item) or inspect.isfunction(item)
    }
    assert paths - documented == set()


def test_pictures_are_small_and_each_is_shown_once_or_more():
    docs = ROOT / "docs"
    pictures = [path for path in docs.rglob("*") if path.suffix in (".svg", ".png")]
    assert sum(path.stat().st_size for path in pictures) < 1e6
    assert len({path.read_bytes() for path in pictures}) == len(pictures), "the same one twice"
    pages = (
        "".join(page.read_text() for page in docs.rglob("*.md"))
        + (ROOT / "mkdocs.yml").read_text()
    )
    assert [path.name for path in pictures if f"{path.name}" not in pages] == []


def test_the_site_has_thirty_pages_at_most(site):
    assert len([page for page in site.rglob("*.html") if page.name != "404.html"]) <= 30


def test_every_page_is_in_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()


def test_every_command_is_on_the_page_of_the_command_line(site):
    page = (site / "cli.html").read_text()
    for name, command in typer.main.get_command(app).commands.items():
        assert f"<code>offramp {name}</code>" in page
        for parameter in command.params:
            shown = name if parameter.param_type_name == "argument" else parameter.opts[0]
            assert shown in page, (name, parameter.name)


def test_examples_in_docstrings_are_shown_as_code(site):
    page = (site / "api.html").read_text()
    assert "doctest" in page or '<span class="gp">&gt;&gt;&gt; </span>' in page
    assert "&gt;&gt;&gt; splits" not in page


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served: its search runs in a worker, which needs HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("path", "width"),
    [("index.html", 1280), ("guides/trained-model.html", 375), ("api.html", 375)],
)
def test_a_page_opens_without_a_request_elsewhere_or_a_complaint(chromium, address, path, width):
    trouble = []
    page = chromium.new_page(viewport={"width": width, "height": 800})
    page.on("console", lambda m: trouble.append(m.text) if m.type != "log" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith((address, "data:")) else trouble.append(r.url),
    )
    page.goto(address + path)
    page.wait_for_load_state("networkidle")
    assert "offramp" in page.title()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
    assert trouble == []


@pytest.mark.browser
def test_the_search_finds_a_word_of_the_library(chromium, address):
    page = chromium.new_page()
    field, found = page.locator(".md-search__input"), page.locator(".md-search-result__item")
    for turn in range(1200):
        if found.count():
            break
        if turn % 100 == 0:
            # Words that are typed before the index is loaded may be lost on a busy machine.
            page.goto(address)
            field.click()
            page.wait_for_timeout(500)
            field.press_sequentially("hopeless", delay=50)
        page.wait_for_timeout(50)
    assert found.count()
    page.close()
