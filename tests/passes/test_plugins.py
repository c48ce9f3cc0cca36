"""Plugins: packages that are found by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jit_passes
from jit_passes import JitPassesWarning, load_plugins

GROUP = "jit_passes.tests"  # not the real one: packages installed here are none of the test's

PASS = """
import builtins
from jit_passes import register_pass

builtins.imports_of_{module} = getattr(builtins, "imports_of_{module}", 0) + 1

@register_pass("{name}", summary="A pass of a plugin.")
def run(graph):
    return False
"""


def install(folder: Path, distribution: str, module: str, source: str) -> None:
    """Write a module, and the folder that tells Python which package it belongs to."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{distribution}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{distribution}_passes = {module}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path; its modules and passes are gone afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules, names = set(sys.modules), set(jit_passes.passes)
    monkeypatch.setattr(sys.modules["jit_passes.passes.plugins"], "_loaded", {})
    yield tmp_path
    for module in set(sys.modules) - modules:
        del sys.modules[module]
    for name in set(jit_passes.passes) - names:
        jit_passes.passes.remove(name)


def test_load_plugins(folder: Path) -> None:
    """Their passes are in the registry; each is imported once, later ones when they are there."""
    import builtins

    assert load_plugins(GROUP) == []
    install(folder, "two", "plugin_two", PASS.format(module="two", name="of_two"))
    (two,) = load_plugins(GROUP)
    assert (two.name, two.distribution, two.version) == ("two_passes", "two", "1.2")
    assert (two.passes, two.error) == (("of_two",), "")
    assert jit_passes.passes["of_two"].summary == "A pass of a plugin."
    install(folder, "one", "plugin_one", PASS.format(module="one", name="of_one"))
    one, same = load_plugins(GROUP)
    assert one.passes == ("of_one",) and same is two
    assert builtins.imports_of_two == 1  # type: ignore[attr-defined]


def test_plugin_that_fails(folder: Path) -> None:
    """A warning with package, entry point and error; others are loaded, and it is tried again."""
    install(folder, "broken", "plugin_broken", "import no_such_module\n")
    install(folder, "good", "plugin_good", PASS.format(module="good", name="of_good"))
    message = r"'broken_passes = plugin_broken' of the package 'broken' 1\.2.*ModuleNotFoundError"
    with pytest.warns(JitPassesWarning, match=message) as caught:
        broken, good = load_plugins(GROUP)
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    assert broken.passes == () and "no_such_module" in broken.error
    assert good.passes == ("of_good",) and good.error == ""
    (folder / "plugin_broken.py").write_text(PASS.format(module="broken", name="of_broken") + "#\n")
    repaired, _ = load_plugins(GROUP)
    assert repaired.passes == ("of_broken",) and repaired.error == ""


def test_passes_of_a_taken_name(folder: Path) -> None:
    """The error of the registry is what the warning says."""
    install(folder, "bad", "plugin_bad", PASS.format(module="bad", name="freeze"))
    with pytest.warns(JitPassesWarning, match=r"JitPassesError: .*freeze"):
        (plugin,) = load_plugins(GROUP)
    assert plugin.passes == ()
