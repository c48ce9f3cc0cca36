"""Every graph pass on its golden files, and what the files cannot say in Python."""

from __future__ import annotations

import pytest
from golden import Golden, files, run, text_of

import jit_passes

FILES = files()
# Report a change without looking: PyTorch's own passes do not tell.
SILENT = {"remove_dead_code"}
# Need attributes, calls or numbers, or what reading IR does already, or only make remarks: see
# test_rewrites.py, test_slots.py, test_qat_passes.py and test_invariants.py.
ELSEWHERE = {
    "defer_batch_norm",
    "fold_attributes",
    "fold_batch_norm",
    "fold_prepack",
    "freeze",
    "insert_fake_quantize",
    "insert_observers",
    "insert_quantize_dequantize",
    "pool_attributes",
    "pool_constants",
    "propagate_constants",
    "remark_float",
    "remove_rank_checks",
    "remove_unused_attributes",
    "resolve_none_checks",
    "split_groups",
    "widen_conv1d",
}

golden = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


@golden
def test_golden(file: Golden) -> None:
    """The graph that comes out, and whether the pass says that it changed something."""
    module = file.module()
    before = text_of(module)
    module, changed = run(file, module)
    after = text_of(module)
    file.check(after)
    assert (after != before) == file.changes, after
    assert changed == file.changes or file.run in SILENT


@golden
def test_second_run_changes_nothing(file: Golden) -> None:
    """And says so."""
    module, _ = run(file, file.module())
    once = text_of(module)
    module, changed = run(file, module)
    assert text_of(module) == once
    assert not changed or file.run in SILENT


def test_every_pass_has_files() -> None:
    """A match and a refusal at least, in a folder of the pass's name."""
    have: dict[str, set[str]] = {}
    for file in FILES:
        assert file.path.parent.name == file.run
        have.setdefault(file.run, set()).add("yes" if file.changes else "no")
    assert set(have) == set(jit_passes.passes) - ELSEWHERE
    assert all(changes == {"yes", "no"} for changes in have.values()), have
