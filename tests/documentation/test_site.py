"""The documentation site: its pages, and a strict build where mkdocs is installed."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import jit_passes
from tools import site_pages

ROOT = site_pages.ROOT
NEEDED = ("mkdocs", "material", "mkdocstrings_handlers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


def test_every_public_name_has_one_entry() -> None:
    """Of the package and of its public rooms; each leads to the object of that name."""
    rooms = site_pages.public_names()
    entries = [name for names in rooms.values() for name in names]
    assert len(entries) == len(set(entries))
    objects = []
    for names in rooms.values():
        for name, path in names.items():
            home, _, attribute = path.rpartition(".")
            given, _, short = name.rpartition(".")
            found = getattr(importlib.import_module(home), attribute)
            assert getattr(importlib.import_module(given), short) is found
            objects.append(found)
    modules = [name for name in jit_passes.__all__ if f"jit_passes.{name}" in sys.modules]
    for name in jit_passes.__all__:
        value = getattr(jit_passes, name)
        if name in modules and value is sys.modules[f"jit_passes.{name}"]:
            assert name in rooms  # a page of its own
            assert all(any(getattr(value, inner) is o for o in objects) for inner in value.__all__)
        else:
            assert any(value is o for o in objects), name


def test_tutorials_are_pages_of_text_and_code() -> None:
    text = '# %% [markdown]\n# # Title\n#\n# Some text.\n\n# %%\nx = 1  # %%\n\n\n# %%\ny = "#"\n'
    expected = '# Title\n\nSome text.\n\n```python\nx = 1  # %%\n```\n\n```python\ny = "#"\n```\n'
    assert site_pages.literate(text) == expected
    pages = site_pages.generated_pages()
    tutorials = sorted(ROOT.glob(site_pages.TUTORIALS))
    assert len(tutorials) > 10
    for path in tutorials:
        page = pages[f"tutorials/{path.stem}.md"]
        assert page.startswith("# ") and page.count("```") % 2 == 0
        assert bare(page, "```") == bare(path.read_text("utf-8"), "# %%")


def bare(text: str, marks: str) -> list[str]:
    """The lines of a text that are neither empty nor marks, without what makes comments of them."""
    lines = [line for line in text.split("\n") if not line.startswith(marks)]
    return [line for line in (re.sub(r"^[# ]+", "", line).strip() for line in lines) if line]


class Page(HTMLParser):
    """The links of a page, and what they may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.sources: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "link"):
            self.sources += [values[name] for name in ("src", "href") if name in values]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; see `make site`")
def test_the_site_is_built(tmp_path: Path) -> None:
    """Without a warning; every link, picture and script is there, and none is of another site."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path: Page(path) for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 50
    for path, page in pages.items():
        for link in page.links + page.sources:
            parts = urlsplit(link)
            if parts.scheme:
                assert link in page.links or parts.scheme == "data", f"{path}: {link}"
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert to.exists(), f"{path}: {link}"
            if parts.fragment and to in pages and parts.fragment != "__tabbed":
                assert unquote(parts.fragment) in pages[to].anchors, f"{path}: {link}"
    pictures = {path.name for path in tmp_path.rglob("docs/pictures/*")}
    assert pictures == {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    api = "".join(path.read_text("utf-8") for path in (tmp_path / "api").glob("*.html"))
    for names in site_pages.public_names().values():
        for path in names.values():
            assert f'id="{path}"' in api, path
