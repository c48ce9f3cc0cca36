"""Documents: generated tables are up to date, links and paths lead somewhere, examples compile."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import torch

from jit_passes.command_line.main import cli
from tools import generate_docs

pytestmark = pytest.mark.skipif(
    "x86" not in torch.backends.quantized.supported_engines, reason="the graphs shown are for x86"
)
ROOT = generate_docs.ROOT
DOCUMENTS = sorted(
    path for folder in ("", "docs/**/", "benchmarks/") for path in ROOT.glob(f"{folder}*.md")
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"^(?:\$ )?jit-passes (.+)$", re.MULTILINE)
TOP = ("jit_passes/", "cpp/", "tests/", "docs/", "tools/", "tutorials/", "benchmarks/")
PATH = re.compile(rf"(?:{'|'.join(TOP)})[\w./-]+|[\w./-]+\.(?:cpp|h|py|md)")
NAME = re.compile(r"(?<![\w/.-])jit_passes(?:\.[A-Za-z_]\w*)+")
# A group of entry points, and a class of TorchScript's.
OTHERS = {"jit_passes.plugins", "jit_passes.CompiledRegion"}
# Files that readers of CONTRIBUTING.md are told to write.
EXAMPLES = {
    "cpp/passes/remove_repeated_relu.cpp",
    "cpp/ops/quantization_error.cpp",
    "tests/passes/ir/remove_repeated_relu/repeated.ir",
    "tests/passes/ir/remove_repeated_relu/written.ir",
    "tests/ops/test_quantization_error.py",
}


def prose(text: str) -> str:
    """Leave out fenced blocks, and all that is generated."""
    return FENCE.sub("", generate_docs.MARK.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors of a document, as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path, text: str) -> Iterator[str]:
    """Relative links of a document that lead nowhere."""
    for link in LINK.findall(prose(text)):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if re.match(r"[a-z]+:", link):
            continue
        known = anchors(target.read_text()) if target.exists() and target.suffix == ".md" else ()
        if not target.exists() or (anchor and anchor not in known):
            yield link


def missing_paths(path: Path, text: str) -> Iterator[str]:
    """Paths in backticks that are no files of the repository.

    A name without a folder, `resolve.py`, may be anywhere in it.
    """
    names = {file.name for top in TOP for file in (ROOT / top).rglob("*.*")}
    folders = (ROOT, path.parent, ROOT / "jit_passes", ROOT / "cpp")
    for word in CODE.findall(prose(text)):
        if not PATH.fullmatch(word) or word in names or word in EXAMPLES:
            continue
        if not any((folder / word).exists() for folder in folders):
            yield word


@pytest.fixture(scope="module", autouse=True)
def stages() -> Iterator[None]:
    """The models whose graphs docs/ARCHITECTURE.md shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generate_docs.STAGES.update(generate_docs.stages())
    yield
    generate_docs.STAGES.clear()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert list(broken_links(path, text)) == []
    assert list(missing_paths(path, text)) == []
    for language, code in FENCE.findall(text):
        if language == "python" and path.name == "README.md":
            compile(code, str(path), "exec")


def test_commands() -> None:
    """Commands that documents show have the arguments and options that they are given."""
    found = 0
    for path in DOCUMENTS:
        for _, code in FENCE.findall(path.read_text(encoding="utf-8")):
            for line in COMMAND.findall(code.replace("\\\n", "")):
                words = shlex.split(line.partition(" | ")[0])
                name, command, rest = cli.resolve_command(click.Context(cli), words)
                assert command is not None
                command.make_context(name, rest)
                found += 1
    assert found > 20
    with pytest.raises(click.UsageError):
        cli.commands["report"].make_context("report", ["a.pt", "b.pt", "--latncy", "-o", "c"])


def test_make_targets() -> None:
    """Targets that documents name are there, and so are the files that the Makefile names."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    texts = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}
    make = re.compile(r"(?:^|`)make ([a-z-]+)", re.MULTILINE)
    named = {path: set(make.findall(text)) for path, text in texts.items()}
    assert {path: names - targets for path, names in named.items() if names - targets} == {}
    assert named[ROOT / "CONTRIBUTING.md"] > {"build", "test", "fuzz"}
    files = set(re.findall(r"tests/[\w/]+\.py", makefile + texts[ROOT / "CONTRIBUTING.md"]))
    lists = dict(re.findall(r"^(SLOW|SANITIZED) :=((?:.*\\\n)*.*)", makefile, re.MULTILINE))
    files |= {f"tests/{name}.py" for name in re.findall(r"[\w/]+", lists["SLOW"])}
    files |= set(re.findall(r"[\w/]+", lists["SANITIZED"]))
    assert [name for name in sorted(files - EXAMPLES) if not (ROOT / name).exists()] == []


def test_names_of_the_package() -> None:
    """Each name `jit_passes.x.y` in the documents is there after `import jit_passes`."""
    names: set[str] = set()
    for path in DOCUMENTS:
        for line in path.read_text(encoding="utf-8").splitlines():
            if path.name != "CHANGELOG.md" and not re.match(r"\s*(from|import) ", line):
                names.update(NAME.findall(line))
    code = "import operator, sys, jit_passes\noperator.attrgetter(*sys.argv[1:])(jit_passes)"
    assert len(names) > 40
    found = sorted(name.partition(".")[2] for name in names - OTHERS)
    command = [sys.executable, "-W", "ignore", "-c", code, *found]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tables_are_up_to_date() -> None:
    """In a process of its own: other tests define targets, passes and methods in this one."""
    command = [sys.executable, "-W", "ignore", "-m", "tools.generate_docs", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run `make docs`"


def test_every_table_stands_in_a_document() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    found = {name for text in texts for _, name, _ in generate_docs.MARK.findall(text)}
    assert found == set(generate_docs.MAKERS)


@pytest.mark.parametrize("name", sorted(generate_docs.MAKERS))
def test_an_old_table_is_found(name: str) -> None:
    old = f"<!-- generated: {name} -->\n| an | old table |\n<!-- end -->\n"
    new = generate_docs.generate(old)
    assert new != old and len(new.splitlines()) > 4
    assert generate_docs.generate(new) == new


def test_numbers_that_differ_between_machines() -> None:
    """A last digit is no news; anything else is."""
    agree = generate_docs.agree
    assert agree("a.pt: 8 KiB, 55% of b, +25.6  x", "a.pt: 8 KiB, 56% of b, +25.5 x")
    assert not agree("55% of b", "59% of b") and not agree("25.6 dB", "26.6 dB")
    assert not agree("2 of 3", "2 of 2") and not agree("0.1.0", "0.1.1")


def test_what_leads_nowhere_is_found() -> None:
    path = ROOT / "docs" / "limits.md"
    links = "[a](gone.md) [b](qat.md) [c](qat.md#gone) [d](qat.md#bits) [e](#gone) [f](#limits)"
    assert list(broken_links(path, links)) == ["gone.md", "qat.md#gone", "#gone"]
    paths = "`passes/gone.py` `stages/prepare.py` `graph/jit.h` `prepare.py` `cpp/gone`"
    assert list(missing_paths(path, paths)) == ["passes/gone.py", "cpp/gone"]
