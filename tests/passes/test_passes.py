"""Every graph pass on its golden files, and what the files cannot say in Python."""

from __future__ import annotations

import pytest

import jit_passes
from tests.passes.golden import Golden, files, run, text_of

FILES = files()
# Report a change without looking: PyTorch does not tell, and freezing makes a new module.
SILENT = {"remove_dead_code", "freeze"}
# Insert again what they are asked to, and erase the shapes of the constants that they made.
NOT_TWICE = {"insert_observers", "insert_fake_quantize", "freeze", "outline_regions"}
# Change nothing, and say why not.
REMARKS_ONLY = {"remark_float"}

golden = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


@golden
def test_golden(file: Golden) -> None:
    """The graph that comes out, and whether the pass says that it changed something."""
    module = file.module()
    before = text_of(module)
    module, changed, told = run(file, module)
    after = text_of(module)
    file.check(told)
    assert (after != before) == file.changes, after
    assert changed == file.changes or file.run in SILENT


@pytest.mark.parametrize(
    "file", [f for f in FILES if f.run not in NOT_TWICE], ids=lambda file: file.name
)
def test_second_run_changes_nothing(file: Golden) -> None:
    """And says so."""
    module = file.module()
    options = file.options_for(module)
    module, _, _ = run(file, module, options)
    once = text_of(module)
    module, changed, _ = run(file, module, options)
    assert text_of(module) == once
    assert not changed or file.run in SILENT


def test_every_pass_has_files() -> None:
    """A match and a refusal at least, in a folder of the pass's name."""
    have: dict[str, set[str]] = {}
    for file in FILES:
        assert file.path.parent.name == file.run
        have.setdefault(file.run, set()).add("yes" if file.changes else "no")
    assert set(have) == set(jit_passes.passes)
    wanted = {name: {"no"} if name in REMARKS_ONLY else {"yes", "no"} for name in have}
    assert have == wanted
