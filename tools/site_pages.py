"""Pages of the documentation site that are no files of docs/: hooks of mkdocs, see mkdocs.yml.

Files of the repository become pages under the paths that they have in it, so that links between
them are right on the site as they are in the repository. Tutorials, which are Python files, become
pages of their text and code. The pages under `api/` list the public names of each room: names in
its `__all__`, and names in the package's `__all__` that are defined in the room.

Nothing is imported from the package, so the site needs no compiled extension.
"""

from __future__ import annotations

import ast
import functools
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "jit_passes"
PAGES = (
    "*.md", "docs/**/*.md", "benchmarks/README.md", "tutorials/**/README.md", "LICENSE",
)  # fmt: skip
PICTURES = ("docs/pictures/*.png", "docs/pictures/*.svg")
TUTORIALS = "tutorials/[0-9][0-9]_*.py"
CELL = re.compile(r"^# %%(?: (\[markdown\]))?[^\n]*\n", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
# Files that are shown as they are, because pages link to them.
SHOWN = ("benchmarks/qat_digits.py",)


def on_files(files: Any, config: Any) -> Any:
    """Replace the pages of docs/ with all pages of the site, and their pictures."""
    from mkdocs.structure.files import File, Files

    theme = [file for file in files if file.src_dir != config.docs_dir]
    folders = (str(ROOT), config.site_dir, config.use_directory_urls)
    pages = [File(path, *folders) for path in (*documents(), *matching(PICTURES))]
    pages += [
        File.generated(config, path, content=text) for path, text in generated_pages().items()
    ]
    return Files([*theme, *pages])


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Let links to files that have become pages lead there."""
    here = posixpath.dirname(page.file.src_uri)

    def lead(found: re.Match[str]) -> str:
        to = posixpath.normpath(posixpath.join(here, found[2]))
        other = page_of(to)
        if other == to or files.get_file_from_path(other) is None:
            return found[0]
        return f"{found[1]}{posixpath.relpath(other, here or '.')}{found[3]}"

    return LINK.sub(lead, markdown)


def page_of(path: str) -> str:
    """Return the page of a file of the repository."""
    return f"{path.removesuffix('.py')}.md" if path.endswith((".py", "LICENSE")) else path


def documents() -> list[str]:
    """Return the Markdown files that are pages as they are."""
    return [path for path in matching(PAGES) if path.endswith(".md")]


def matching(patterns: tuple[str, ...]) -> list[str]:
    """Return the files of the repository that match one of the patterns."""
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def generated_pages() -> dict[str, str]:
    """Return the text of all other pages, by their paths."""
    pages = {}
    for path in sorted(ROOT.glob(TUTORIALS)):
        pages[page_of(path.relative_to(ROOT).as_posix())] = literate(path.read_text("utf-8"))
    for name in SHOWN:
        source = (ROOT / name).read_text("utf-8")
        pages[page_of(name)] = f"# {posixpath.basename(name)}\n\n{fenced(source)}"
    pages["LICENSE.md"] = f"# License\n\n```text\n{(ROOT / 'LICENSE').read_text('utf-8')}```\n"
    rooms = dict(sorted(public_names().items()))
    pages["api/index.md"] = overview(rooms)
    for room, names in rooms.items():
        pages[f"api/{room}.md"] = room_page(room, names)
    return pages


def literate(text: str) -> str:
    """Return the page of a Python file with cells: `# %% [markdown]` is text, `# %%` is code."""
    parts = CELL.split(text)
    cells = [
        re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip() if kind else fenced(body)
        for kind, body in zip(parts[1::2], parts[2::2], strict=True)
    ]
    return "\n\n".join(cells) + "\n"


def fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


@functools.cache
def module(name: str) -> ast.Module:
    """Return the source of a module, as a tree."""
    path = ROOT / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text("utf-8"))


def exported(name: str) -> list[str]:
    """Return the `__all__` of a module; nothing where it has none."""
    for node in module(name).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def definition(name: str, attribute: str) -> tuple[str, str] | None:
    """Return the module that defines what another gives by a name; None for a module itself."""
    for node in module(name).body:
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        for alias in node.names:
            if (alias.asname or alias.name) != attribute:
                continue
            is_package = (ROOT / name.replace(".", "/")).is_dir()
            parts = name.split(".")
            parts = parts[: len(parts) - node.level + is_package]
            if node.module is None:
                return None
            return definition(".".join([*parts, node.module]), alias.name)
    return name, attribute


def public_names() -> dict[str, dict[str, str]]:
    """Return the public names of each room, and the paths of what they are."""
    rooms: dict[str, dict[str, str]] = {}
    seen: set[str] = set()

    def add(given: str, name: str, only: str | None) -> None:
        found = definition(given, name)
        if found is None or ".".join(found) in seen:
            return
        room = only or found[0].partition(".")[2].partition(".")[0] or "package"
        seen.add(".".join(found))
        rooms.setdefault(room, {})[f"{given}.{name}"] = ".".join(found)

    for name in exported(PACKAGE):
        add(PACKAGE, name, None)
    for room in sorted(path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")):
        for name in exported(f"{PACKAGE}.{room}"):
            add(f"{PACKAGE}.{room}", name, room)
    return rooms


def summary(path: str) -> str:
    """Return the first line of the docstring of a module, or ""."""
    return (ast.get_docstring(module(path)) or "").partition("\n")[0]


def title(room: str) -> str:
    return PACKAGE if room == "package" else f"{PACKAGE}.{room}"


def overview(rooms: dict[str, dict[str, str]]) -> str:
    """Return the page that lists rooms and names."""
    rows = ""
    for room, names in rooms.items():
        cells = (
            f"[`{title(room)}`]({room}.md)",
            summary(title(room)),
            ", ".join(links(room, names)),
        )
        rows += f"| {' | '.join(cells)} |\n"
    return (
        "# API reference\n\n"
        "All public names, by the room that defines them. Import a name as it is written in the "
        "heading of its entry: most are in `jit_passes` itself.\n\n"
        f"| room | contents | names |\n| --- | --- | --- |\n{rows}"
    )


def links(room: str, names: dict[str, str]) -> Iterator[str]:
    for name, path in names.items():
        yield f"[`{name.rpartition('.')[2]}`]({room}.md#{path})"


def room_page(room: str, names: dict[str, str]) -> str:
    """Return the page of a room; mkdocstrings fills in signatures and docstrings."""
    entries = ""
    for name, path in names.items():
        options = f"heading: {name}\n      toc_label: {name.rpartition('.')[2]}"
        entries += f"::: {path}\n    options:\n      {options}\n\n"
    return f"# {title(room)}\n\n{summary(title(room))}\n\n{entries}"
